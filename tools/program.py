"""What every program shares: errors that read like sentences, exit codes, logging."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from types import FrameType
from typing import Any

from drmas_pl import __version__

FULL_ERROR = "HYDRA_FULL_ERROR"
USER_ERROR = 2
RUN_ERROR = 1
INTERRUPTED = 130


def run_program(usage: str, action: Callable[[list[str]], int], argv: Sequence[str] | None) -> int:
    """Print ``usage`` when asked for help; else run ``action`` on the command-line words and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--help" in words or "-h" in words:
        print(usage, end="")
        return 0
    if "--version" in words:
        print(versions())
        return 0
    configure_logging()
    with importable_working_directory(), ended_in_order():
        return guarded(lambda: action(words))


def versions() -> str:
    """Return this package's version and those of the packages that decide most, without importing them."""
    found = []
    for name in ("torch", "lightning", "transformers", "hydra-core"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return f"drmas_pl {__version__} ({', '.join(found)})"


def guarded(action: Callable[[], int]) -> int:
    """Run ``action`` and turn the library's errors into one message and an exit code.

    With ``HYDRA_FULL_ERROR=1`` in the environment errors keep their traceback.

    Returns:
        The action's own code; 2 for a wrong setting, 1 for a condition met at run time, 130 after Ctrl-C, 143 after SIGTERM, 129 after
        SIGHUP.
    """
    from drmas_pl.errors import ConfigError, DrMasError

    try:
        return action()
    except (DrMasError, OSError) as error:
        if os.environ.get(FULL_ERROR) == "1":
            raise
        return fail(str(error), USER_ERROR if isinstance(error, ConfigError) else RUN_ERROR)
    except KeyboardInterrupt as error:
        return fail("stopped at once; the last checkpoint is whole", exit_code(error))


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, raised where the program was; its argument is the number of the signal."""


def exit_code(error: KeyboardInterrupt) -> int:
    """Return what a program ends with after a signal, as shells count it.

    >>> exit_code(KeyboardInterrupt()), exit_code(Terminated(15))
    (130, 143)
    """
    return 128 + error.args[0] if isinstance(error, Terminated) else INTERRUPTED


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Raise :class:`Terminated` on SIGTERM and SIGHUP, so that servers and worker processes are ended as after Ctrl-C.

    Signals that are ignored stay so, as ``nohup`` has it; other threads than the main one hear none.
    """
    before: dict[int, Any] = {}

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated(number)

    if threading.current_thread() is threading.main_thread():
        for found in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(found) is signal.SIG_DFL:
                before[found] = signal.signal(found, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def importable_working_directory() -> Iterator[None]:
    """Look for modules in the working directory first, as ``python -m`` does, since a ``_target_`` may name one of the user's there."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def kept_environment(**changes: str | None) -> Iterator[None]:
    """Undo what the block does to environment variables: those that loggers set would be settings of the next run of a sweep.

    Args:
        **changes: Variables to set for the block; None removes one.
    """
    before = dict(os.environ)
    try:
        for name, value in changes.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def fail(message: str, code: int) -> int:
    """Print an error and return its exit code."""
    print(f"error: {message}", file=sys.stderr)
    return code


def configure_logging() -> None:
    """Show the library's own messages as plain lines and keep dependencies quiet."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root = logging.getLogger("drmas_pl")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(logging.INFO)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "transformers", "matplotlib", "bm25s"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(lightning|torch|transformers|gymnasium)\..*")
