"""Engines whose answers take time: some by themselves, in threads, and some by steps."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from drmas_pl.engines.base import Engine
from drmas_pl.types import Completion, GenerationRequest


class Remembering:
    """Asks an engine for one request at a time, and for equal ones once."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.known: dict[GenerationRequest, Completion] = {}

    def __call__(self, request: GenerationRequest) -> Completion:
        if request not in self.known:
            (self.known[request],) = self.inner.generate([request])
        return self.known[request]


class ThreadedEngine(Engine):
    """Works by itself: a thread resolves each future after a delay of its own.

    Args:
        answer: Gives the completion of a request.
        delay: Gives the seconds until it is there.
    """

    def __init__(
        self, answer: Callable[[GenerationRequest], Completion], delay: Callable[[GenerationRequest], float]
    ) -> None:
        self.answer, self.delay = answer, delay
        self.asked: list[GenerationRequest] = []
        self.futures: list[Future[Completion]] = []
        self._due: list[tuple[float, int, Future[Completion], Completion]] = []
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        future: Future[Completion] = Future()
        self.asked.append(request)
        self.futures.append(future)
        due = time.monotonic() + self.delay(request)
        with self._changed:
            heapq.heappush(self._due, (due, len(self.futures), future, self.answer(request)))
            self._changed.notify()
        return future

    @property
    def idle(self) -> bool:
        return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not (self._due and self._due[0][0] <= time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                _, _, future, completion = heapq.heappop(self._due)
            if future.set_running_or_notify_cancel():
                future.set_result(completion)


class SteppedEngine(Engine):
    """Continuous batching without a model: a request takes as many steps as ``steps`` says.

    Args:
        answer: Gives the completion of a request.
        steps: Gives the number of steps that it takes.
    """

    def __init__(
        self, answer: Callable[[GenerationRequest], Completion], steps: Callable[[GenerationRequest], int]
    ) -> None:
        self.answer, self.steps = answer, steps
        self.batches: list[list[GenerationRequest]] = []
        self._rows: list[tuple[GenerationRequest, Future[Completion]]] = []
        self._arrived: list[tuple[GenerationRequest, Future[Completion]]] = []
        self._left: dict[int, int] = {}

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        future: Future[Completion] = Future()
        self._arrived.append((request, future))
        return future

    @property
    def idle(self) -> bool:
        return not (self._rows or self._arrived)

    def begin_step(self) -> Callable[[], None]:
        arrived = sorted(self._arrived, key=lambda pair: pair[0].order)
        self._arrived = []
        self._left |= {id(future): self.steps(request) for request, future in arrived}
        self._rows = [pair for pair in [*self._rows, *arrived] if not pair[1].cancelled()]
        self.batches.append([request for request, _ in self._rows])
        return self._finish

    def _finish(self) -> None:
        rows, self._rows = self._rows, []
        for request, future in rows:
            self._left[id(future)] -= 1
            if self._left[id(future)]:
                self._rows.append((request, future))
            else:
                future.set_result(self.answer(request))


def random_delays(rng: random.Random, longest: float) -> Callable[[object], float]:
    """Draw a delay for whatever is asked, often none."""
    return lambda _: rng.choice((0.0, 0.0, rng.random() * longest))


def echo(requests: Sequence[GenerationRequest]) -> list[Completion]:
    """Answer with the first id of every prompt."""
    return [Completion((request.prompt_ids[0],), (0.0,), "stop", 0) for request in requests]
