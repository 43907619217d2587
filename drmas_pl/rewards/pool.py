r"""Grade in killable worker processes, from any number of threads.

Place in the data flow: environments that are played in parallel share one ``GraderPool``. Cheap answers are judged in the calling thread;
the rest goes to a worker. The clock starts when a worker begins on the answer, so that neither queueing nor imports count; a worker that
overruns it is killed and replaced, and the answer is ``ungradable`` with reason ``timeout``.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, get_args

from drmas_pl.errors import EnvironmentFault
from drmas_pl.rewards.base import References, Verdict
from drmas_pl.rewards.math import extract_answer, grade_cheaply
from drmas_pl.rewards.process import WorkerDied, WorkerProcess

Grader = Literal["exact", "math_verify"]


class GraderPool:
    r"""Grade mathematics with a clock; a context manager, safe to share between threads and event loops.

    Workers start when the first answer needs one. Deep copies of environments share a pool by reference.

    Args:
        workers: Number of processes, at least 1.
        timeout: Seconds of execution per answer, above 0.
        grader: ``exact`` grades as ``math.grade`` does, ``math_verify`` as ``math.grade_with_math_verify``.

    Raises:
        ValueError: A setting is out of range.

    Example:
        >>> with GraderPool(workers=1) as pool:
        ...     pool.grade(r"\boxed{042}", "42").status
        'correct'
    """

    def __init__(self, *, workers: int = 2, timeout: float = 5.0, grader: Grader = "exact") -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        if grader not in get_args(Grader):
            raise ValueError(f"grader must be one of {', '.join(get_args(Grader))}, got {grader!r}")
        self._timeout = timeout
        self._grader = grader
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="grader")
        self._workers = [WorkerProcess() for _ in range(workers)]
        self._idle: queue.LifoQueue[WorkerProcess] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._closed = threading.Event()

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, _: dict[int, Any]) -> GraderPool:
        return self

    def __call__(self, text: str, references: References) -> Verdict:
        """Grade as a reward function; see :meth:`grade`."""
        return self.grade(text, references)

    def grade(self, text: str, references: References) -> Verdict:
        """Grade one solution and wait for the verdict.

        Args:
            text: See ``math.grade``.
            references: See ``math.grade``.

        Raises:
            EnvironmentFault: Workers cannot be started, or the pool is closed.
        """
        return self.submit(text, references).result()

    def grade_many(self, texts: Sequence[str], references: Sequence[References]) -> list[Verdict]:
        """Grade a batch, using every worker.

        Args:
            texts: Solutions, one a task.
            references: References of each task, equally many.

        Returns:
            Verdicts in the order of the solutions.

        Raises:
            ValueError: The lengths differ.
            EnvironmentFault: See ``grade``.
        """
        if len(texts) != len(references):
            raise ValueError(
                f"references must have one entry per text, got {len(references)} for {len(texts)} texts"
            )
        futures = [self.submit(text, wanted) for text, wanted in zip(texts, references, strict=True)]
        return [future.result() for future in futures]

    async def grade_async(self, text: str, references: References) -> Verdict:
        """Grade one solution without blocking the event loop.

        Args:
            text: See ``math.grade``.
            references: See ``math.grade``.

        Raises:
            EnvironmentFault: See ``grade``.
        """
        return await asyncio.wrap_future(self.submit(text, references))

    def submit(self, text: str, references: References) -> Future[Verdict]:
        """Queue one solution; the future is done already when the cheap layers decide.

        Args:
            text: See ``math.grade``.
            references: See ``math.grade``.

        Raises:
            EnvironmentFault: The pool is closed.
        """
        self._check_open()
        if self._grader == "math_verify":
            return self._threads.submit(self._run, text, references)
        verdict = grade_cheaply(text, references)
        if verdict is None:
            answer = extract_answer(text).answer or ""
            return self._threads.submit(self._run, answer, references)
        done: Future[Verdict] = Future()
        done.set_result(verdict)
        return done

    def close(self) -> None:
        """End the workers and refuse further work; answers still waiting are cancelled. Closing twice is allowed."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.retire()

    def _run(self, answer: str, references: References) -> Verdict:
        """Grade in the next idle worker; a worker that dies is replaced and the answer tried once more."""
        worker = self._idle.get()
        try:
            for _ in range(2):
                try:
                    return worker.grade(answer, references, self._timeout, self._grader)
                except TimeoutError:
                    return Verdict("ungradable", "timeout", answer)
                except WorkerDied:
                    self._check_open()
            return Verdict("ungradable", "worker died", answer)
        finally:
            self._idle.put(worker)

    def _check_open(self) -> None:
        """Refuse work once closed."""
        if self._closed.is_set():
            raise EnvironmentFault("the grader pool is closed; grade before leaving its context")
