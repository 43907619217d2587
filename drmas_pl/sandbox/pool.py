"""Run many programs at a time, but not too many, from threads and from coroutines.

Place in the data flow: environments that are played in parallel share one ``SandboxPool``. Programs wait for a free place; waiting is not
part of their time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

from drmas_pl.errors import SandboxError
from drmas_pl.sandbox.base import Isolation, Sandbox, SandboxResult
from drmas_pl.sandbox.builtin import BuiltinSandbox


class SandboxPool:
    """A bounded number of programs at a time; a context manager, safe to share between threads and event loops.

    Deep copies of environments share a pool by reference.

    Args:
        sandbox: Runs the programs and is closed with the pool; None for the built-in one.
        workers: Programs at a time, at least 1; None for as many as there are processor cores.
        remembered: Number of latest results to keep, at least 0: a program that ended by itself is not run again on the same input.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> with SandboxPool(workers=1) as pool:
        ...     [result.stdout for result in pool.run_many(["print(1)", "print(2)"])]
        ['1\\n', '2\\n']
    """

    def __init__(
        self, sandbox: Sandbox | None = None, *, workers: int | None = None, remembered: int = 0
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1 program at a time or None, got {workers}")
        if remembered < 0:
            raise ValueError(f"remembered must be at least 0 results, got {remembered}")
        self._sandbox = sandbox or BuiltinSandbox()
        self.workers = workers or os.cpu_count() or 1
        self._remembered = remembered
        self._known: dict[tuple[str, str], SandboxResult] = {}
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(max_workers=self.workers, thread_name_prefix="sandbox")

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, _: dict[int, Any]) -> SandboxPool:
        return self

    def submit(self, program: str, *, stdin: str = "", timeout: float = 10.0) -> Future[SandboxResult]:
        """Queue one program; see :meth:`Sandbox.run`.

        Raises:
            SandboxError: The pool is closed.
        """
        try:
            return self._threads.submit(self._run, program, stdin=stdin, timeout=timeout)
        except RuntimeError as error:
            raise SandboxError("the sandbox pool is closed; make another one") from error

    def _run(self, program: str, *, stdin: str, timeout: float) -> SandboxResult:
        """Run a program, or answer as before; what a limit ended may end otherwise the next time."""
        known = self._known.get((program, stdin))
        if known is not None and known.seconds <= timeout:
            return known
        result = self._sandbox.run(program, stdin=stdin, timeout=timeout)
        if result.status in ("ok", "error") and self._remembered:
            with self._lock:
                self._known[program, stdin] = result
                while len(self._known) > self._remembered:
                    del self._known[next(iter(self._known))]
        return result

    def run(self, program: str, *, stdin: str = "", timeout: float = 10.0) -> SandboxResult:
        """Run one program and wait for its end; see :meth:`Sandbox.run`."""
        return self.submit(program, stdin=stdin, timeout=timeout).result()

    def run_many(
        self, programs: Sequence[str], *, stdin: str | Sequence[str] = "", timeout: float = 10.0
    ) -> list[SandboxResult]:
        """Run several programs, or one with several inputs, using every worker.

        Args:
            programs: Python sources.
            stdin: What each can read; one text for all, or as many as there are programs.
            timeout: Seconds for each program.

        Returns:
            Results in the order of the programs.

        Raises:
            ValueError: The lengths differ.
        """
        inputs = [stdin] * len(programs) if isinstance(stdin, str) else list(stdin)
        if len(inputs) != len(programs):
            raise ValueError(
                f"stdin must have one text per program, got {len(inputs)} for {len(programs)} programs"
            )
        futures = [
            self.submit(program, stdin=text, timeout=timeout)
            for program, text in zip(programs, inputs, strict=True)
        ]
        return [future.result() for future in futures]

    async def run_async(self, program: str, *, stdin: str = "", timeout: float = 10.0) -> SandboxResult:
        """Run one program without blocking the event loop; see :meth:`Sandbox.run`."""
        return await asyncio.wrap_future(self.submit(program, stdin=stdin, timeout=timeout))

    def describe(self) -> Isolation:
        """Say what holds programs on this machine; see :meth:`Sandbox.describe`."""
        return self._sandbox.describe()

    def close(self) -> None:
        """End all programs and forget those that wait; a second call does nothing."""
        self._sandbox.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
