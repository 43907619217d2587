"""Signals that end a run in good order: Ctrl-C, and what schedulers and closed terminals send.

The first signal asks for a stop after the iteration. A second Ctrl-C ends the run at once. SIGTERM and SIGHUP come from something that will
not wait: what may be given up, a rollout or a validation, goes on for so many seconds at most, and an update is finished in any case, since
weights in the middle of one cannot be saved. More of them, which schedulers send, change nothing.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

log = logging.getLogger(__name__)
# What ends a process from outside, as far as the platform has it.
TERMINATING: Final = tuple(
    number for number in (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")) if number is not None
)


class StopSignals:
    """Listens for signals inside a ``with`` block of the main thread; elsewhere it does nothing.

    Args:
        act: Called with the first signal.
        grace_seconds: How long a rollout or a validation may go on after SIGTERM or SIGHUP.

    Attributes:
        received: The first signal so far.
        is_over: Whether the grace has passed.
    """

    def __init__(self, act: Callable[[], None], *, grace_seconds: float) -> None:
        self.received: signal.Signals | None = None
        self.is_over = False
        self._act = act
        self._grace_seconds = grace_seconds
        self._terminated = False
        self._can_be_given_up = False
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    @property
    def is_terminating(self) -> bool:
        """Whether something that will not wait has asked for the end."""
        return self._terminated

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *TERMINATING):
                before = signal.getsignal(number)
                # a handler that is not Python's cannot be put back; what nohup has switched off stays so
                if before is not None and not (before is signal.SIG_IGN and number != signal.SIGINT):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    @contextmanager
    def may_be_given_up(self) -> Iterator[None]:
        """Let the end of the grace raise KeyboardInterrupt inside the block."""
        self._can_be_given_up = True
        try:
            if self.is_over:
                raise KeyboardInterrupt
            yield
        finally:
            self._can_be_given_up = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_over:
            self._end()
            return
        is_first = self.received is None
        if number in TERMINATING and not self._terminated:
            self._terminated = True
            self._begin_grace()
        if is_first:
            self.received = signal.Signals(number)
            log.warning("%s", self._describe())
            self._act()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def _describe(self) -> str:
        if self.received == signal.SIGINT:
            return "stopping after this iteration; press Ctrl-C again to stop at once without saving"
        name = signal.Signals(self.received or signal.SIGTERM).name
        return f"{name}: stopping and saving after this iteration, or in {self._grace_seconds:g} s where it was before it"

    def _begin_grace(self) -> None:
        main = threading.get_ident()

        def expire() -> None:
            self.is_over = True
            # handlers run in the main thread, wherever it is at that moment
            signal.pthread_kill(main, signal.SIGINT)

        self._timer = threading.Timer(self._grace_seconds, expire)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        """Leave what may be given up; a second Ctrl-C after that is heard no more, since the run is being saved."""
        if self._can_be_given_up:
            self._can_be_given_up = False
            raise KeyboardInterrupt
