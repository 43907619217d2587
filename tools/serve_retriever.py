"""Serve a retriever over HTTP with the Search-R1 protocol.

    drmas serve-retriever retriever=bm25s
    drmas serve-retriever retriever=dense retriever.corpus=data/wiki-18.jsonl retriever.index=data/wiki-18.e5 --port 8000

Words with ``=`` choose and change a file of conf/retriever, as for tools/train.py. A run asks the server with ``retriever=http``.
Whoever asks must show the token in the environment variable ``DRMAS_RETRIEVER_TOKEN``, if there is one; beyond this machine there is always
one.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from drmas_pl.errors import ConfigError, DrMasError
from drmas_pl.retrieval.protocol import TOKEN_VARIABLE
from drmas_pl.tools.program import importable_working_directory

if TYPE_CHECKING:
    from drmas_pl.retrieval import Retriever


def main(argv: Sequence[str] | None = None) -> int:
    """Build the retriever, then serve until SIGINT or SIGTERM; requests that run are answered first.

    Args:
        argv: Arguments without the program's name; those of the process if None.

    Returns:
        0 after a shutdown, 2 for a wrong setting, 1 when the retriever cannot be built or the address is taken.
    """
    arguments = build_parser().parse_args(argv)
    # SIGTERM means the same as Ctrl-C, also while an index is being loaded.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with importable_working_directory():
            serve(arguments)
    except KeyboardInterrupt:
        return 0
    except (DrMasError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="drmas serve-retriever", description="Serve a retriever over HTTP with the Search-R1 protocol."
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="retriever=FILE and retriever.SETTING=VALUE (default retriever=bm25s)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default %(default)s, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="port, 0 for a free one (default %(default)s)")
    parser.add_argument(
        "--topk",
        type=int,
        default=3,
        help="passages per query when a request does not say (default %(default)s)",
    )
    parser.add_argument(
        "--max-queries", type=int, default=512, help="queries per request (default %(default)s)"
    )
    parser.add_argument("--max-topk", type=int, default=100, help="largest topk (default %(default)s)")
    parser.add_argument(
        "--max-bytes", type=int, default=1 << 20, help="size of a request (default %(default)s)"
    )
    parser.add_argument(
        "--read-timeout",
        type=float,
        default=10.0,
        help="seconds for a request to arrive (default %(default)s)",
    )
    parser.add_argument(
        "--answer-timeout",
        type=float,
        default=120.0,
        help="seconds for an answer to be found and taken (default %(default)s)",
    )
    parser.add_argument(
        "--max-connections",
        type=int,
        default=None,
        help="connections at a time (default half of the open files that are allowed, at most 256)",
    )
    parser.add_argument(
        "--no-token",
        action="store_true",
        help="let everybody ask who reaches the address, also beyond this machine",
    )
    return parser


def serve(arguments: argparse.Namespace) -> None:
    """Build everything and serve.

    Raises:
        ConfigError: A setting is wrong or an extra is missing.
        DrMasError: The retriever cannot be built.
        OSError: The address cannot be listened at.
    """
    from drmas_pl.retrieval.connections import ConnectionLimits, limited_protocol
    from drmas_pl.retrieval.server import ServerLimits, create_app

    try:
        import uvicorn
    except ImportError as error:
        raise ConfigError(f"serving needs uvicorn ({error}); pip install 'drmas_pl[serve]'") from error
    try:
        limits = ServerLimits(
            max_bytes=arguments.max_bytes, max_queries=arguments.max_queries, max_topk=arguments.max_topk
        )
        connections = ConnectionLimits(
            arguments.read_timeout, arguments.answer_timeout, arguments.max_connections
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    # Listening comes before the index is loaded, so that a taken port is told at once.
    with listen(arguments.host, arguments.port) as place:
        retriever = build_retriever(arguments.overrides)
        host, port = place.getsockname()[:2]
        token = None if arguments.no_token else find_token(ip_address(host).is_loopback)
        app = create_app(retriever, topk=arguments.topk, limits=limits, token=token)
        print(
            f"serving {retriever.fingerprint}\nat http://{f'[{host}]' if ':' in host else host}:{port}/retrieve",
            flush=True,
        )
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=10,
            http=limited_protocol(connections),
        )
        uvicorn.Server(config).run(sockets=[place])


def find_token(this_machine_only: bool) -> str | None:
    """Return the token of the environment; beyond this machine a new one where there is none, which is printed."""
    token = os.environ.get(TOKEN_VARIABLE)
    if token or this_machine_only:
        return token or None
    token = secrets.token_urlsafe(32)
    print(
        f"whoever asks from elsewhere needs {TOKEN_VARIABLE}={token} in the environment of the run",
        file=sys.stderr,
    )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        OSError: The address is taken or does not exist; the message names it.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OSError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; choose another with --port or --host"
        ) from error


def build_retriever(overrides: Sequence[str]) -> Retriever:
    """Build what a file of conf/retriever says, with changes.

    Raises:
        ConfigError: A word is wrong, or the retriever rejects its settings.

    >>> len(build_retriever(["retriever=bm25s", "retriever.k1=1.2"]))
    3862
    """
    from omegaconf import OmegaConf

    from drmas_pl.config.arguments import rewrite
    from drmas_pl.config.compose import Choices, check_choices, compose_file, remove
    from drmas_pl.config.construct import build
    from drmas_pl.config.keys import check_keys, replaced_keys
    from drmas_pl.config.literal import literal_values
    from drmas_pl.retrieval import Retriever

    option = "bm25s"
    changes = {}
    for word in overrides:
        name, equals, value = word.partition("=")
        if not equals or not (name == "retriever" or name.startswith("retriever.")):
            raise ConfigError(f"expected retriever=FILE or retriever.SETTING=VALUE, got {word!r}")
        if name == "retriever":
            option = value
        else:
            changes[name] = word
    check_choices({"retriever": option}, Choices.read())
    known = {"retriever": compose_file("retriever", option)}
    words = rewrite(literal_values(changes.values()), ())
    config = {"retriever": compose_file("retriever", option, words)}
    for path in replaced_keys(known, "retriever", config["retriever"]["_target_"]):
        remove(known, path)
        if path not in changes:
            remove(config, path)
    check_keys(config, known)
    plain: Any = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    retriever: Any = build(plain["retriever"], "retriever")
    if not isinstance(retriever, Retriever):
        raise ConfigError(f"retriever must be a Retriever, got {type(retriever).__name__}")
    return retriever


if __name__ == "__main__":
    sys.exit(main())
