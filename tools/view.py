"""Show runs in a browser while they go: ``drmas view outputs``.

The list of runs and the page of each follow what is written; nothing can be changed from there. This machine alone can look, unless --host
says otherwise; then a token is needed, which is printed.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from drmas_pl.errors import ConfigError
from drmas_pl.report.run_page import MAX_BYTES
from drmas_pl.tools.program import guarded

TOKEN_VARIABLE = "DRMAS_VIEW_TOKEN"


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM.

    Args:
        argv: Arguments without the program's name; those of the process if None.

    Returns:
        0 after a shutdown, 2 for a wrong setting, 1 when the address is taken.
    """
    arguments = build_parser().parse_args(argv)
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return guarded(lambda: serve(arguments))
    finally:
        signal.signal(signal.SIGTERM, previous)


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="drmas view", description="Show runs in a browser while they go.")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("outputs"),
        help="a run, or a folder of runs (default outputs)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default %(default)s, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8080, help="port, 0 for a free one (default %(default)s)")
    parser.add_argument(
        "--megabytes",
        type=float,
        default=MAX_BYTES / 1e6,
        help="size of a page that conversations are sampled for (default %(default)g)",
    )
    return parser


def serve(arguments: argparse.Namespace) -> int:
    """Serve the runs of a folder and return the exit code.

    Raises:
        ConfigError: The folder is missing, or an extra is.
        OSError: The address cannot be listened at.
    """
    from drmas_pl.report.live_server import ServedRuns, create_view
    from drmas_pl.retrieval.connections import ConnectionLimits, limited_protocol
    from drmas_pl.tools.serve_retriever import listen

    try:
        import uvicorn
    except ImportError as error:
        raise ConfigError(f"serving needs uvicorn ({error}); pip install 'drmas_pl[serve]'") from error
    if not arguments.folder.is_dir():
        raise ConfigError(f"no folder {arguments.folder}; name the one that runs are written to")
    runs = ServedRuns(arguments.folder.resolve(), max_bytes=int(arguments.megabytes * 1e6))
    with listen(arguments.host, arguments.port) as place:
        host, port = place.getsockname()[:2]
        token = find_token(ip_address(host).is_loopback)
        shown = f"[{host}]" if ":" in host else host
        words = f"?token={token}" if token else ""
        print(f"showing {arguments.folder} at http://{shown}:{port}/{words}", flush=True)
        config = uvicorn.Config(
            create_view(runs, token=token),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=5,
            http=limited_protocol(ConnectionLimits()),
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[place])
    return 0


def find_token(this_machine_only: bool) -> str | None:
    """Return the token of the environment; beyond this machine a new one where there is none."""
    token = os.environ.get(TOKEN_VARIABLE)
    if token or this_machine_only:
        return token or None
    return secrets.token_urlsafe(32)


if __name__ == "__main__":
    sys.exit(main())
