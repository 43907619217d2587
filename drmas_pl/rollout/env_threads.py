"""Threads for environment steps: they never keep a program from ending, and one that hangs is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol


class EnvExecutor(Protocol):
    """Runs environment steps beside generation."""

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin a call, and return a future of what it returns or raises."""

    def abandon(self, future: Future[Any]) -> None:
        """Stop counting on a call that takes too long, and make room for another one in its place."""

    def shutdown(self) -> None:
        """Begin no more calls; what still runs is not waited for."""


class EnvThreads:
    """A pool of daemon threads.

    The standard library's pool waits for its threads at the end of a program, forever if one of them hangs.

    Args:
        workers: Largest number of calls that run at a time, those that were abandoned not counted.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.workers = workers
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        # threads without a call; below 0, calls without a thread
        self._free = 0
        self._closed = False
        self._abandoned: set[Future[Any]] = set()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin a call in the first free thread.

        Raises:
            RuntimeError: The pool is shut down.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads of environment steps are shut down; start a new collection")
            if self._free > 0:
                self._free -= 1
            elif self._started < self.workers:
                self._start()
            else:
                self._free -= 1
            self._calls.put((future, call))
        return future

    def abandon(self, future: Future[Any]) -> None:
        """Replace the thread of a call that runs; its thread ends with it, if it ever does."""
        with self._lock:
            if not future.done() and not self._closed:
                self._abandoned.add(future)
                self._start()
                self._free += 1

    def shutdown(self) -> None:
        """Begin no more calls, and let every thread end with the call that it runs."""
        with self._lock:
            self._closed = True
            with suppress(Empty):
                while (item := self._calls.get_nowait()) is not None:
                    item[0].cancel()
            for _ in range(self._started):
                self._calls.put(None)

    def _start(self) -> None:
        """Start a thread; the caller holds the lock."""
        self._started += 1
        threading.Thread(target=self._work, name=f"env-{self._started}", daemon=True).start()

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # whatever it is, the trajectory must learn of it
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # a thread without work must not keep the last trajectory alive
            del item, call
            if self._is_superfluous(future):
                return
            del future

    def _is_superfluous(self, future: Future[Any]) -> bool:
        with self._lock:
            if future in self._abandoned:
                self._abandoned.discard(future)
                return True
            self._free += 1
            return False
