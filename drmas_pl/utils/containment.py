"""Keeps what environments, teams and roles raise inside their own trajectory, whatever it is.

Ordinary errors pass: they fail the trajectory. What would end an event loop, a thread pool or the program instead, such as the
``SystemExit`` of ``sys.exit()``, becomes an ordinary error, except for a ``KeyboardInterrupt`` after a real Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

from drmas_pl.errors import ContractError

T = TypeVar("T")


class Containment:
    """Surrounds user code; a context manager, since it listens for Ctrl-C meanwhile.

    Attributes:
        guard: A context manager for each piece of user code. It raises a ContractError in place of what is no ordinary error, or what
            coroutines cannot pass on.

    >>> with Containment() as containment, containment.guard:
    ...     exit(3)
    Traceback (most recent call last):
    drmas_pl.errors.ContractError: SystemExit(3) was raised, which may end neither the run nor its threads
    """

    def __init__(self) -> None:
        self.interrupted = False
        self.guard = _Guard(self)
        self._before: Any = None

    def __enter__(self) -> Containment:
        # signals reach the main thread alone; a handler that is not Python's cannot be called from here
        if threading.current_thread() is threading.main_thread() and callable(
            before := signal.getsignal(signal.SIGINT)
        ):
            self._before = before
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        # whoever has taken the signal over meanwhile keeps it
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, self._before)

    def call(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns, guarded."""
        with self.guard:
            return function()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        self._before(number, frame)


class _Guard:
    """Keeps no state, so that any number of threads and coroutines may be inside."""

    __slots__ = ("_containment",)

    def __init__(self, containment: Containment) -> None:
        self._containment = containment

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration)):
            return
        if self._containment.interrupted and isinstance(error, KeyboardInterrupt):
            return
        message = f"{error!r} was raised, which may end neither the run nor its threads"
        raise ContractError(message).with_traceback(trace) from error


def contained(function: Callable[[], T]) -> T:
    """Call user code once inside a :class:`Containment`."""
    with Containment() as containment:
        return containment.call(function)
