"""Runs served while they go: found, shown, and shown anew; read by those who may, and by reading alone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.report.live_server import ServedRuns, create_view, version_of
from drmas_pl.report.run_page import write_page
from tests.helpers.asking import request
from tests.helpers.run_folders import trajectory, turn, write_folder

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("fastapi", reason="needs the extra serve")


def write_run(folder: Path) -> Path:
    played = trajectory("t1", [turn("solver", "<script>alert(1)</script>")], success=True)
    records = [{"iteration": 0, "validation/success": 0.25}, {"iteration": 3, "validation/success": 0.5}]
    return write_folder(folder, records=records, trajectories=[played])


@contextmanager
def serving(root: Path, **settings: Any) -> Iterator[str]:
    place = socket.create_server(("127.0.0.1", 0))
    app = create_view(ServedRuns(root), **settings)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        place.close()


def get(url: str, method: str = "GET", **headers: str) -> Any:
    return request(method, url, headers=headers, redirect=False, retries=False)


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    write_run(tmp_path / "search-hierarchy" / "first")
    return tmp_path


def test_a_run_is_found_shown_and_shown_anew(outputs: Path) -> None:
    with serving(outputs) as url:
        listed = get(f"{url}/")
        text = listed.data.decode()
        assert listed.status == 200 and "search-hierarchy/first" in text and "25.0 → 50.0 %" in text
        (name,) = ServedRuns(outputs).folders()
        assert f'href="/runs/{name}/"' in text
        page = get(f"{url}/runs/{name}/").data.decode()
        version = get(f"{url}/runs/{name}/version").data.decode()
        assert f'data-version="{version}"' in page and "connect-src 'self'" in page
        assert "<script>alert(1)" not in page
        metrics = outputs / "search-hierarchy" / "first" / "metrics.jsonl"
        with metrics.open("a") as file:
            file.write(json.dumps({"iteration": 4, "validation/success": 0.75}) + "\n")
        newer = get(f"{url}/runs/{name}/version").data.decode()
        assert newer != version
        page = get(f"{url}/runs/{name}/").data.decode()
        assert f'data-version="{newer}"' in page and "25.0 → 75.0 %" in get(f"{url}/").data.decode()


def test_a_page_is_made_once_for_each_state(outputs: Path) -> None:
    runs = ServedRuns(outputs)
    (name,) = runs.folders()
    first = runs.page(name)
    assert runs.page(name) is first and runs.version(name) == version_of(runs.folders()[name])
    (runs.folders()[name] / "summary.json").write_text("{}")
    assert runs.page(name) is not first
    assert runs.page("no-such-run") is None and runs.version("..") is None


def test_runs_are_listed_by_their_last_change_and_links_are_not_followed(
    outputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = write_run(tmp_path_factory.mktemp("elsewhere") / "secret")
    (outputs / "link").symlink_to(elsewhere.parent)
    assert [folder.name for folder in ServedRuns(outputs).folders().values()] == ["first"]
    write_run(outputs / "a" / "b" / "third")
    write_run(outputs / "a" / "b" / "c" / "too-deep")
    names = [folder.name for folder in ServedRuns(outputs).folders().values()]
    assert names == ["third", "first"]
    run = outputs / "a" / "b" / "third"
    assert list(ServedRuns(run).folders().values()) == [run]


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    assert "No run yet" in ServedRuns(tmp_path).list_page()


@pytest.mark.parametrize("name", ["<b>", "a&b", "{x}", "q'\""])
def test_names_of_folders_are_text(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / name)
    page = ServedRuns(tmp_path).list_page()
    assert "<b>" not in page and page.count("</a>") == 1


def test_nothing_but_reading_is_answered_and_no_path_is_read(outputs: Path) -> None:
    with serving(outputs) as url:
        assert {get(url, method).status for method in ("POST", "PUT", "DELETE", "OPTIONS")} == {405}
        for place in ("/runs/../../etc/passwd", "/runs/%2e%2e/", "/metrics.jsonl", "/openapi.json", "/docs"):
            assert get(url + place).status == 404, place


def test_answers_carry_their_headers(outputs: Path) -> None:
    with serving(outputs) as url:
        headers = get(f"{url}/").headers
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"


def test_another_name_for_this_machine_is_refused(outputs: Path) -> None:
    with serving(outputs) as url:
        assert get(url, Host="evil.example").status == 403
        assert get(url, Host="localhost:8080").status == 200


def test_with_a_token_nobody_reads_without_it(outputs: Path) -> None:
    with serving(outputs, token="secret") as url:
        assert get(url).status == 401 and get(f"{url}/?token=wrong").status == 401
        assert get(url, Authorization="Bearer wrong").status == 401
        assert get(url, Authorization="Bearer secret", Host="any.example").status == 200
        shown = get(f"{url}/?token=secret")
        cookie = shown.headers["Set-Cookie"]
        assert shown.status == 303 and shown.headers["Location"] == "/"
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert get(url, Cookie=cookie.split(";")[0]).status == 200
        assert get(url, Cookie="drmas_view=wrong").status == 401


def test_a_page_on_disk_asks_nobody(outputs: Path, tmp_path: Path) -> None:
    write_page([outputs / "search-hierarchy" / "first"], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "connect-src" not in text and "fetch(" not in text
