"""The engine of a worker group whose ranks are other processes, as the driver sees it.

Engines that compute in the ranks advance when the driver says so: a step hands over what was submitted, has every rank make a few decode
steps, and returns what is done by then, so that two runs compute the same. A server works by itself: each request is handed on at once,
and a thread of the driver resolves its future as soon as the first rank has the answer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from drmas_pl.cluster.rank_requests import Answer, NumberedRequest
from drmas_pl.engines.base import Engine
from drmas_pl.errors import EngineError, GroupLost
from drmas_pl.types import Completion, GenerationRequest

# Decode steps between two visits of the driver: enough to make the visit cheap, few enough that no answer waits long for it.
DECODE_STEPS: Final = 8
# Seconds that the first rank waits for an answer before it tells that there is none.
POLL_SECONDS: Final = 1.0


class RequestRanks(Protocol):
    """What the engine needs of its worker group."""

    @property
    def timeout(self) -> float:
        """Seconds without any answer after which ranks count as stuck."""

    @property
    def served(self) -> bool:
        """Whether one engine, the first rank's, generates for all ranks."""

    @property
    def rank_count(self) -> int:
        """Number of ranks."""

    def require_awake(self) -> None:
        """Raise unless the engines are awake."""

    def begin_requests(self, method: str, *args: Any, **call: Any) -> list[Any]:
        """Call a method on ranks and return the pending results."""

    def finish_requests(self, refs: Sequence[Any], tasks: Sequence[str]) -> list[Any]:
        """Wait for the results of :meth:`begin_requests`."""

    def give_up_stuck(self, tasks: Sequence[str]) -> GroupLost:
        """End the ranks, which do not answer any more, and return the error that says so."""


class RemoteEngine(Engine):
    """Generates on the ranks of a group.

    Args:
        group: Calls its ranks.
    """

    def __init__(self, group: RequestRanks) -> None:
        self._group = group
        self._stepped = SteppedRequests(group)
        self._forwarded = ForwardedRequests(group)

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Begin to continue a prompt; see :meth:`Engine.submit`."""
        self._group.require_awake()
        return self._forwarded.submit(request) if self._group.served else self._stepped.submit(request)

    @property
    def idle(self) -> bool:
        """Whether no rank waits for a step; see :attr:`Engine.idle`."""
        return not self._stepped.unanswered

    @property
    def needs_steps(self) -> bool:
        """Whether it advances in :meth:`step` alone, which is so unless a server generates."""
        return not self._group.served

    def begin_step(self) -> Callable[[], None]:
        """Have all ranks make a few decode steps and return what waits for their end; see :meth:`Engine.begin_step`."""
        return self._stepped.begin_step()

    def suspend(self) -> None:
        """Have a server give back what is under way; see :meth:`Engine.suspend`. Engines that compute in the ranks answer it."""
        if self._group.served:
            self._forwarded.suspend()

    def end_rollout(self) -> None:
        """Fail whatever is not answered when the rollout ends; the ranks' engines give it up when they fall asleep."""
        error = EngineError("the rollout ended before the request was answered")
        self._stepped.end(error)
        self._forwarded.unanswered.fail(error)


@dataclass(slots=True)
class _Unanswered:
    request: GenerationRequest
    future: Future[Completion]


@dataclass(slots=True)
class UnansweredRequests:
    """Futures by the numbers under which ranks know their requests.

    Attributes:
        cancelled: Called with the number of a request that somebody gave up.
    """

    cancelled: Callable[[int], None]
    _numbers: Any = field(default_factory=itertools.count)
    _open: dict[int, _Unanswered] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def numbers(self) -> list[int]:
        """Return the numbers of all requests, in the order of their arrival."""
        return list(self._open)

    def tasks(self) -> list[str]:
        """Return the tasks that the requests are for."""
        return sorted(
            {str(entry.request.order[0]) for entry in [*self._open.values()] if entry.request.order}
        )

    def add(self, request: GenerationRequest) -> tuple[int, Future[Completion]]:
        """Return a number and a future for a request."""
        number = next(self._numbers)
        future = Future[Completion]()
        self._open[number] = _Unanswered(request, future)
        future.add_done_callback(partial(self._note_cancelled, number))
        return number, future

    def settle(self, answers: Sequence[Answer]) -> None:
        """Resolve futures; answers that nobody waits for any more are dropped."""
        for number, answer in answers:
            # whoever removes an entry resolves its future, so that it is resolved once
            entry = self._open.pop(number, None)
            if entry is None or not entry.future.set_running_or_notify_cancel():
                continue
            if isinstance(answer, Completion):
                entry.future.set_result(answer)
            else:
                entry.future.set_exception(answer)

    def fail(self, error: Exception) -> None:
        """Fail every future."""
        self.settle([(number, error) for number in self.numbers()])

    def _note_cancelled(self, number: int, future: Future[Completion]) -> None:
        if future.cancelled() and self._open.pop(number, None) is not None:
            future.set_running_or_notify_cancel()
            self.cancelled(number)


class SteppedRequests:
    """Requests to engines that compute in the ranks.

    They are dealt to ranks in the order of ``order``, and all requests of a task go to the rank that has its first one, where their prompts
    begin alike; a new task goes to the rank with the fewest unanswered requests. Neither depends on time.

    Args:
        group: Calls its ranks.
    """

    def __init__(self, group: RequestRanks) -> None:
        self.group = group
        self.unanswered = UnansweredRequests(cancelled=self._cancel)
        self._new: list[NumberedRequest] = []
        self._rank_of_task: dict[Hashable, int] = {}
        # only of requests that were handed over
        self._rank_of_number: dict[int, int] = {}
        self._cancelled: list[int] = []

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Keep a request for the next step."""
        number, future = self.unanswered.add(request)
        self._new.append((number, request))
        return future

    def begin_step(self) -> Callable[[], None]:
        """See :meth:`RemoteEngine.begin_step`."""
        if not self.unanswered and not self._cancelled:
            return lambda: None
        parts = self._deal()
        cancelled = self._cancelled
        self._cancelled = []
        try:
            refs = self.group.begin_requests(
                "step", cancelled, DECODE_STEPS, each=[(part,) for part in parts]
            )
        except GroupLost as error:
            self.unanswered.fail(error)
            return lambda: None
        return partial(self._finish_step, refs)

    def end(self, error: Exception) -> None:
        """Fail what is not answered and know nothing of tasks any more."""
        self.unanswered.fail(error)
        self._new.clear()
        self._cancelled.clear()
        self._rank_of_task.clear()
        self._rank_of_number.clear()

    def _finish_step(self, refs: Sequence[Any]) -> None:
        sent = self._rank_of_number
        try:
            found = self.group.finish_requests(refs, self.unanswered.tasks())
        except Exception as error:
            # ranks that still run must not go on with what has failed here
            self._cancelled += [number for number in self.unanswered.numbers() if number in sent]
            self.unanswered.fail(error)
            return
        for answers in found:
            self.unanswered.settle(answers)

    def _deal(self) -> list[list[NumberedRequest]]:
        """Return what each rank is to begin with."""
        new = sorted(
            (pair for pair in self._new if pair[0] in self.unanswered), key=lambda pair: pair[1].place
        )
        self._new.clear()
        sent = self._rank_of_number
        self._rank_of_number = {n: sent[n] for n in self.unanswered.numbers() if n in sent}
        load = Counter(self._rank_of_number.values())
        parts: list[list[NumberedRequest]] = [[] for _ in range(self.group.rank_count)]
        for number, request in new:
            # one without an order is a task of its own
            task: Hashable = request.order[:1] or number
            fewest = min(range(len(parts)), key=lambda rank: (load[rank], rank))
            rank = self._rank_of_task.setdefault(task, fewest)
            parts[rank].append((number, request))
            self._rank_of_number[number] = rank
            load[rank] += 1
        return parts

    def _cancel(self, number: int) -> None:
        if number in self._rank_of_number:
            self._cancelled.append(number)


class ForwardedRequests:
    """Requests to a server, which the first rank's engine asks.

    Args:
        group: Calls its ranks.
    """

    def __init__(self, group: RequestRanks) -> None:
        self.group = group
        self.unanswered = UnansweredRequests(cancelled=self._cancel)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last_progress = 0.0

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Hand a request on."""
        number, future = self.unanswered.add(request)
        try:
            self.group.begin_requests("submit", [(number, request)], ranks=1)
        except GroupLost as error:
            self.unanswered.settle([(number, error)])
            return future
        with self._lock:
            if self._thread is None:
                self._last_progress = time.monotonic()
                self._thread = threading.Thread(target=self._collect, name="answers of ranks", daemon=True)
                self._thread.start()
        return future

    def suspend(self) -> None:
        """Have the server end what is under way; what it gives back is collected as answers are."""
        if not self.unanswered:
            return
        try:
            self.group.begin_requests("suspend", ranks=1)
        except GroupLost as error:
            self.unanswered.fail(error)

    def _collect(self) -> None:
        """Resolve futures until there are none."""
        while self._goes_on():
            tasks = self.unanswered.tasks()
            try:
                refs = self.group.begin_requests("poll", POLL_SECONDS, ranks=1)
                (answers,) = self.group.finish_requests(refs, tasks)
            except Exception as error:
                self.unanswered.fail(error)
                continue
            self.unanswered.settle(answers)
            now = time.monotonic()
            if answers:
                self._last_progress = now
            elif now - self._last_progress > self.group.timeout:
                self.unanswered.fail(self.group.give_up_stuck(tasks))

    def _goes_on(self) -> bool:
        with self._lock:
            if not self.unanswered:
                self._thread = None
            return self._thread is not None

    def _cancel(self, number: int) -> None:
        try:
            self.group.begin_requests("cancel", [number], ranks=1)
        except GroupLost:
            # nobody is left who could be at work on it
            return
