"""Runs of a program in a forked process, which has everything imported already, and what came of them.

The process is of a session of its own, by which whatever it leaves behind is found. Its output comes through a pipe, so that nothing that
is done to disks changes what it says.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a process.

    Attributes:
        code: Exit code; negative for the signal that killed it, None where it did not end in time.
        text: Everything that it printed.
        orphans: Processes of its session that outlived it.
        seconds: How long it took.
    """

    code: int | None
    text: str
    orphans: int
    seconds: float

    @property
    def error(self) -> str:
        """The line that says what went wrong."""
        lines = [line for line in self.text.splitlines() if line.startswith("error: ")]
        return lines[-1] if lines else ""

    @property
    def faults(self) -> list[str]:
        """What no process may show, whatever was done to it."""
        found = []
        if self.code is None:
            found.append("hung")
        if "Traceback (most recent call last)" in self.text:
            found.append("traceback")
        if self.orphans:
            found.append("orphan")
        if self.code in (1, 2) and not self.error:
            found.append("no message")
        return found


def run(
    action: Callable[[], int],
    *,
    prepare: Callable[[], None] | None = None,
    folder: Path | None = None,
    limit: float = LIMIT_SECONDS,
    orphan_seconds: float = 5.0,
) -> Outcome:
    """Call ``action`` in a process of its own and wait for it.

    A process that stops itself with SIGSTOP is woken up again a moment later.

    Args:
        action: What to do; its result is the exit code.
        prepare: Called in the process before.
        folder: Working directory.
        limit: Seconds after which the process is killed.
        orphan_seconds: How long its children may take to end after it.
    """
    began = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    receiving, sending = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(receiving)
        _become(action, prepare, folder, sending)
    os.close(sending)
    try:
        code, text = _wait(process, receiving, began + limit)
    finally:
        os.close(receiving)
    orphans = _await_orphans(process, time.monotonic() + orphan_seconds)
    return Outcome(code, text, orphans, time.monotonic() - began)


def program(words: Sequence[str]) -> Callable[[], int]:
    """Return an action that trains as the command line says."""

    def train() -> int:
        from drmas_pl.tools.train import main

        return main(list(words))

    return train


def _become(
    action: Callable[[], int], prepare: Callable[[], None] | None, folder: Path | None, output: int
) -> None:
    """Do the action and leave the process, whatever happens."""
    code = 70
    try:
        os.setsid()
        for number in (1, 2):
            os.dup2(output, number)
        # whoever forked may have put something else in their place
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        if folder is not None:
            os.chdir(folder)
        if prepare is not None:
            prepare()
        code = action()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _wait(process: int, receiving: int, deadline: float) -> tuple[int | None, str]:
    """Return exit code and output."""
    chunks: list[bytes] = []
    while True:
        ready, _, _ = select.select([receiving], [], [], 0.02)
        chunk = os.read(receiving, 65_536) if ready else b""
        chunks.append(chunk)
        if not chunk:
            found, status = os.waitpid(process, os.WNOHANG | os.WUNTRACED)
            if found and os.WIFSTOPPED(status):
                time.sleep(0.1)
                os.kill(process, signal.SIGCONT)
            elif found:
                return os.waitstatus_to_exitcode(status), _text(chunks, receiving)
            elif time.monotonic() > deadline:
                # a busy machine may not have let it make its group yet
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return None, _text(chunks, receiving)


def _text(chunks: list[bytes], receiving: int) -> str:
    """Return everything that was and still is in the pipe; children that live on keep it open."""
    while select.select([receiving], [], [], 0)[0]:
        chunk = os.read(receiving, 65_536)
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode(errors="replace")


def _await_orphans(session: int, deadline: float) -> int:
    """Count processes of a session that do not end in time, and kill them."""
    while (found := session_members(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in found:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(found)


def session_members(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = re.sub(r"^.*\) ", "", path.read_text()).split()[:4]
        except (OSError, ValueError):
            continue
        if int(owner) == session and state != "Z":
            found.append(int(path.parent.name))
    return found
