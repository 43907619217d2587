"""Serve the pages of runs while they go, read-only, as a FastAPI application (extra ``serve``).

::

    /                   the runs, newest first
    /runs/<id>/         the page of one, which is loaded anew when the run has gone on
    /runs/<id>/version  what a page compares itself with

Nothing of a request is a path: runs are found by the server and named by a hash. A page is made when its run has changed since,
one at a time.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import threading
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from drmas_pl.errors import ConfigError
from drmas_pl.report.run_files import MARKS, RunFiles, is_run, read_run
from drmas_pl.report.run_page import MAX_BYTES, make_page

if TYPE_CHECKING:
    from fastapi import FastAPI

# How deep below the served folder runs are looked for, and how many are listed.
DEPTH: Final = 3
MAX_RUNS: Final = 500
COOKIE: Final = "drmas_view"
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
LIST_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
LIST_SECONDS: Final = 10


class ServedRuns:
    """The runs below a folder, and their pages as they were made last.

    Args:
        root: A run folder, or a folder of runs, or of folders of runs.
        max_bytes: Size of a page that conversations are sampled for.
    """

    def __init__(self, root: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self._pages: dict[str, tuple[str, str]] = {}
        self._making = threading.Lock()

    def folders(self) -> dict[str, Path]:
        """Return the run folders by id, the one that changed last first."""
        found = sorted(_runs_below(self.root, DEPTH), key=_changed_at, reverse=True)
        return {self._name(folder): folder for folder in found[:MAX_RUNS]}

    def _name(self, folder: Path) -> str:
        place = folder.relative_to(self.root).as_posix()
        return hashlib.blake2b(place.encode(), digest_size=8).hexdigest()

    def page(self, name: str) -> str | None:
        """Return the page of a run as it is now; None if there is no such run."""
        folder = self.folders().get(name)
        if folder is None:
            return None
        with self._making:
            version = version_of(folder)
            kept = self._pages.get(name)
            if kept is None or kept[0] != version:
                kept = (version, make_page([folder], max_bytes=self.max_bytes, version=version))
                # one page of every run would fill the memory
                self._pages = {name: kept}
            return kept[1]

    def version(self, name: str) -> str | None:
        """Return what changes with a run; None if there is no such run."""
        folder = self.folders().get(name)
        return None if folder is None else version_of(folder)

    def list_page(self) -> str:
        """Return the list of runs."""
        rows = "".join(_row(name, folder, self.root) for name, folder in self.folders().items())
        body = f"<table><tr><th>run<th>state<th>iteration<th>success<th>changed</tr>{rows}</table>"
        if not rows:
            body = "<p>No run yet: none of the folders holds config.yaml, metrics.jsonl or summary.json.</p>"
        return _LIST.format(root=html.escape(str(self.root)), body=body, seconds=LIST_SECONDS)


_LIST: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{seconds}">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>Runs in {root}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 0 auto; padding: 20px 24px; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid #80808060; font-variant-numeric: tabular-nums; }}
</style></head><body><h1>Runs in {root}</h1>{body}</body></html>
"""


def _row(name: str, folder: Path, root: Path) -> str:
    run = read_run(folder)
    place = folder.relative_to(root).as_posix()
    seconds = time.time() - _changed_at(folder)
    cells = [
        f'<a href="/runs/{name}/">{html.escape(place if place != "." else run.name)}</a>',
        "finished" if run.finished else "not finished",
        f"{run.iteration}/{html.escape(str(run.setting('trainer.max_iterations', '?')))}",
        _score(run),
        f"{_ago(seconds)} ago",
    ]
    return f"<tr>{''.join(f'<td>{cell}' for cell in cells)}</tr>"


def _score(run: RunFiles) -> str:
    points = run.series("validation/success") or run.series("train/success")
    if not points:
        return "–"
    first = points[0][1]
    last = points[-1][1]
    return f"{100 * last:.1f} %" if len(points) == 1 else f"{100 * first:.1f} → {100 * last:.1f} %"


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def _runs_below(folder: Path, depth: int) -> list[Path]:
    """Return the runs in a folder and in folders below it; links are not followed."""
    if is_run(folder):
        return [folder]
    if depth == 0 or not folder.is_dir():
        return []
    inner = (one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
    return [run for one in inner for run in _runs_below(one, depth - 1)]


def _changed_at(folder: Path) -> float:
    return max((_stat(folder / mark)[0] for mark in MARKS), default=0.0)


def version_of(folder: Path) -> str:
    """Return a hash of when the files of a run changed last, and of their sizes."""
    files = [*(folder / mark for mark in MARKS), *sorted((folder / "trajectories").glob("*.jsonl"))]
    state = repr([(file.name, *_stat(file)) for file in files])
    return hashlib.blake2b(state.encode(), digest_size=8).hexdigest()


def _stat(path: Path) -> tuple[float, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0.0, 0
    return stat.st_mtime, stat.st_size


def create_view(runs: ServedRuns, *, token: str | None = None) -> FastAPI:
    """Build the application.

    Args:
        runs: What is served.
        token: What a browser must show once, as ``/?token=…``, and programs as ``Authorization: Bearer …``; None lets
            everybody read who asks for this machine by one of its own names, which no page of another site can.

    Raises:
        ConfigError: fastapi is missing.
    """
    try:
        from fastapi import FastAPI, HTTPException
        from fastapi.responses import HTMLResponse, PlainTextResponse
    except ImportError as error:
        raise ConfigError(f"serving needs fastapi ({error}); pip install 'drmas_pl[serve]'") from error
    app = FastAPI(title="drmas_pl runs", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(_Guard, token=token)

    def known(found: str | None) -> str:
        if found is None:
            raise HTTPException(404, "no such run")
        return found

    @app.get("/")
    def index() -> HTMLResponse:
        return HTMLResponse(runs.list_page(), headers={"Content-Security-Policy": LIST_POLICY})

    @app.get("/runs/{name}/")
    def page(name: str) -> HTMLResponse:
        return HTMLResponse(known(runs.page(name)))

    @app.get("/runs/{name}/version")
    def version(name: str) -> PlainTextResponse:
        return PlainTextResponse(known(runs.version(name)))

    return app


class _Guard:
    """Refuses whoever may not read, and everything that is no reading; gives every answer its headers."""

    def __init__(self, app: Any, token: str | None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = self._answer(scope)
        await (self.app if answer is None else answer)(scope, receive, _with_headers(send))

    def _answer(self, scope: Mapping[str, Any]) -> Any:
        """Return the refusal, or the way to the page without the token; None lets the request through."""
        from fastapi.responses import PlainTextResponse, RedirectResponse

        headers = dict(scope["headers"])
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this server only shows", 405)
        if self.token is None:
            host = headers.get(b"host", b"").decode("latin-1")
            return None if _is_own_name(host) else PlainTextResponse("ask for localhost", 403)
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._is_token(asked):
            answer = RedirectResponse(scope["path"], 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        bearer = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
        if self._is_token(bearer) or self._is_token(_cookie(headers.get(b"cookie", b"").decode("latin-1"))):
            return None
        return PlainTextResponse("open the address with ?token=… that the server has printed", 401)

    def _is_token(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), (self.token or "").encode())


def _with_headers(send: Any) -> Any:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message.get("headers", ()), *own]
        await send(message)

    return sent


def _is_own_name(host: str) -> bool:
    """Tell whether a Host header names this machine: an address of another name may lead here as well.

    >>> _is_own_name("localhost:8000"), _is_own_name("[::1]:80"), _is_own_name("evil.example:8000")
    (True, True, False)
    """
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return name in ("localhost", "127.0.0.1", "[::1]")


def _cookie(header: str) -> str:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")
