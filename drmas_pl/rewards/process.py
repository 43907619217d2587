"""Hold one grading process by its pipes.

Place in the data flow: ``GraderPool`` owns these and lends each to one thread at a time. A process starts on first use, is killed when it
overruns its time, and starts again for the next answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from drmas_pl.errors import EnvironmentFault
from drmas_pl.rewards.base import Verdict
from drmas_pl.rewards.worker import LOADING, READY, RUNNING

START_SECONDS: Final = 120.0
# what a process that is alive takes at most to say that it has begun, on a busy machine
ANSWER_SECONDS: Final = 1.0
_MODULE: Final = "drmas_pl.rewards.worker"
_ROOT: Final = str(Path(__file__).resolve().parents[2])


class WorkerDied(Exception):
    """The process ended before it replied."""


class WorkerProcess:
    """Run ``drmas_pl.rewards.worker`` and exchange lines of JSON with it; for one thread at a time, except ``retire``."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._retired = False
        self._busy = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Return the process id, or None while no process runs."""
        return None if self._process is None else self._process.pid

    def grade(self, answer: str, references: str | Any, timeout: float, grader: str = "exact") -> Verdict:
        """Grade one answer; the clock starts when the process says that it begins.

        Args:
            answer: Content of a box, with balanced braces; for ``math_verify`` the whole solution.
            references: See ``math.grade``.
            timeout: Seconds.
            grader: ``exact`` or ``math_verify``.

        Raises:
            TimeoutError: The clock ran out; the process was killed.
            WorkerDied: The process ended by itself, or was killed from outside.
            EnvironmentFault: The process does not start.
        """
        with self._lock:
            self._busy = True
        try:
            return self._grade(answer, references, timeout, grader)
        finally:
            with self._lock:
                self._busy = False
                if self._retired:
                    self._kill()

    def _grade(self, answer: str, references: str | Any, timeout: float, grader: str) -> Verdict:
        process = self._process or self._start()
        text = rf"\boxed{{{answer}}}" if grader == "exact" else answer
        request = json.dumps([text, references, timeout, grader]) + "\n"
        try:
            assert process.stdin is not None
            process.stdin.write(request.encode())
            process.stdin.flush()
            self._await_start(process, timeout)
            return Verdict(*self._receive(process, timeout))
        except BrokenPipeError:
            self._kill()
            raise WorkerDied from None
        except (TimeoutError, WorkerDied):
            self._kill()
            raise

    def _await_start(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        """Wait until the clock is to start; a process that says nothing is frozen, and as good as dead.

        Raises:
            WorkerDied: It did not answer.
            TimeoutError: It did not get ready.
        """
        try:
            word = self._receive(process, max(timeout, ANSWER_SECONDS))
        except TimeoutError:
            raise WorkerDied from None
        if word == LOADING:
            word = self._receive(process, START_SECONDS)
        assert word == RUNNING

    def retire(self) -> None:
        """End the process for good; a thread that waits for it sees it die."""
        with self._lock:
            self._retired = True
            if self._process is not None and self._busy:
                # its pipes are closed by the thread that reads them
                self._process.kill()
                self._process.wait()
            else:
                self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        """Start a process and wait until its heavy imports are done; one that is killed meanwhile is started once more."""
        for attempt in (1, 2):
            process = self._launch()
            try:
                greeting = self._receive(process, START_SECONDS)
            except (TimeoutError, WorkerDied) as error:
                self._kill()
                if self._retired:
                    raise WorkerDied from None
                if attempt == 1 and isinstance(error, WorkerDied):
                    continue
                break
            assert greeting == READY
            return process
        raise EnvironmentFault(
            f"a grading process did not start; run `{sys.executable} -m {_MODULE}` to see why"
        )

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start a process, unless retired."""
        with self._lock:
            if self._retired:
                raise WorkerDied
            path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        self._unread = b""
        return process

    def _receive(self, process: subprocess.Popen[bytes], timeout: float) -> Any:
        """Read one line of JSON within ``timeout`` seconds."""
        assert process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(process.stdout.fileno(), 65_536)
                if not chunk:
                    raise WorkerDied
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _kill(self) -> None:
        """End the process and forget it."""
        process = self._process
        self._process = None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            # Closing flushes, which fails when the process is gone.
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
