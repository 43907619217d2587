"""Single keys of a terminal, read while a run goes, without Enter and without their being shown."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Any


class KeyReader:
    """Calls a function with every key that is pressed. Ctrl-C still interrupts.

    Where there is no terminal to read from, or another program has it, nothing is read.

    Args:
        pressed: Called in a thread of its own with one character.
    """

    def __init__(self, pressed: Callable[[str], None]) -> None:
        self._pressed = pressed
        self._before: list[Any] | None = None
        self._terminal = -1
        self._wake: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    @property
    def reading(self) -> bool:
        """Whether keys are being read."""
        return self._thread is not None

    def start(self) -> None:
        """Begin to read."""
        terminal = _own_terminal()
        if terminal is None:
            return
        import termios
        import tty

        self._terminal = terminal
        self._before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal)
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(self._wake[0],), name="keys", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End reading, and give the terminal back as it was."""
        if self._thread is None or self._wake is None:
            return
        import termios

        os.write(self._wake[1], b"x")
        self._thread.join()
        self._thread = None
        for end in self._wake:
            os.close(end)
        if self._before is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def _read(self, wake: int) -> None:
        while True:
            ready, _, _ = select.select([self._terminal, wake], [], [])
            if wake in ready:
                return
            try:
                data = os.read(self._terminal, 1)
            except OSError:
                return
            if not data:
                return
            self._pressed(data.decode(errors="replace"))


def _own_terminal() -> int | None:
    """Return the descriptor of the terminal that this process reads from, in the foreground; None without one."""
    try:
        terminal = sys.stdin.fileno()
        if os.isatty(terminal) and os.tcgetpgrp(terminal) == os.getpgrp():
            return terminal
    except (OSError, ValueError, AttributeError):
        pass
    return None
