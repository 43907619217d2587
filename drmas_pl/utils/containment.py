"""Keeps what environments, teams and roles raise inside their own trajectory, whatever it is.

Ordinary errors pass: they fail the trajectory. What would end an event loop, a thread pool or the program instead, such as the
``SystemExit`` of ``sys.exit()``, becomes an ordinary error, except for a ``KeyboardInterrupt`` after a real Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from drmas_pl.errors import ContractError

T = TypeVar("T")


class Containment:
    """Calls user code; a context manager, since it listens for Ctrl-C meanwhile.

    >>> with Containment() as containment:
    ...     containment.call(lambda: exit(3))
    Traceback (most recent call last):
    drmas_pl.errors.ContractError: SystemExit(3) was raised, which may end neither the run nor its threads
    """

    def __init__(self) -> None:
        self._pressed = False
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
        """Return what ``function`` returns.

        Raises:
            ContractError: It raised what is no ordinary error, or what coroutines cannot pass on.
        """
        try:
            return function()
        except BaseException as error:
            ordinary = isinstance(error, Exception) and not isinstance(
                error, (StopIteration, StopAsyncIteration)
            )
            if ordinary or (self._pressed and isinstance(error, KeyboardInterrupt)):
                raise
            message = f"{error!r} was raised, which may end neither the run nor its threads"
            raise ContractError(message).with_traceback(error.__traceback__) from error

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pressed = True
        self._before(number, frame)


def contained(function: Callable[[], T]) -> T:
    """Call user code once inside a :class:`Containment`."""
    with Containment() as containment:
        return containment.call(function)
