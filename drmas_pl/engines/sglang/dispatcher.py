"""Requests on their way to a server: a bounded number of them at a time, each answered for itself.

::

    submit() ──▶ waiting, by order ──▶ under way ──▶ its future
                     ▲       │             │
                     │   prepare_server()  │ the server was lost
                     └───────┴─────────────┘

A request is sent by whoever makes room for it: the thread that submits it, or the client's thread that has just taken an answer. What
takes long, such as starting a server and bringing it weights, happens in a thread of the dispatcher's own. A lost server is replaced
once, whoever notices first, and what it had not answered is asked again: with a seed per request the answers are those that it would
have given.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from drmas_pl.engines.sglang.client import RequestTimeout, ServerLost
from drmas_pl.engines.sglang.generate import SamplingTarget, TaskRanks
from drmas_pl.engines.sglang.server import Server
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest

log = logging.getLogger(__name__)
# Seconds that a server gets to answer requests that it was told to abort.
ABORT_SECONDS: Final = 5.0


class ServerUser(Protocol):
    """What the dispatcher asks of its engine."""

    weights_version: int

    def find_target(self) -> SamplingTarget | None:
        """Return where requests can be sent at once, or None while a server has to be prepared; must not block."""

    def prepare_server(self, lost: Server | None, losses: int) -> None:
        """Make a server ready, in the place of ``lost`` if there is one; ``losses`` servers in a row were lost before."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request without an answer."""

    request: GenerationRequest
    max_tokens: int
    number: int
    future: Future[Completion] = field(default_factory=Future)
    rid: str = ""
    target: SamplingTarget | None = None
    call: Future[Any] | None = None
    losses: int = 0
    # whoever sets this under the lock resolves the future, so that it is resolved once
    settled: bool = False

    def __lt__(self, other: _Pending) -> bool:
        return (self.request.place, self.number) < (other.request.place, other.number)


class RequestDispatcher:
    """Sends requests to the server of one engine. Futures are resolved in other threads, and so are their callbacks called.

    Args:
        user: The engine.
        max_concurrent: Largest number of requests under way at a time.
        max_restarts: How often in a row a request is asked again because its server was lost.
    """

    def __init__(self, user: ServerUser, *, max_concurrent: int, max_restarts: int) -> None:
        self._user = user
        self._max_concurrent = max_concurrent
        self._max_restarts = max_restarts
        # never held while something is awaited or a future is resolved
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._waiting: list[_Pending] = []
        self._under_way: set[_Pending] = set()
        self._task_ranks = TaskRanks()
        self._holds = 0
        self._lost: Server | None = None
        self._preparing = False
        self._thread: ThreadPoolExecutor | None = None

    def submit(self, request: GenerationRequest, max_tokens: int) -> Future[Completion]:
        """Send a request as soon as there is room; among those that wait, the lower ``place`` goes first.

        Args:
            request: What to continue.
            max_tokens: Largest number of tokens to sample.

        Returns:
            A future of the completion, with finish reason ``abort`` where the server refused the request or did not answer in time. It
            stays pending while the request is under way, so that cancelling it gives the request up at any time.
        """
        pending = _Pending(request, max_tokens, next(self._numbers))
        pending.future.add_done_callback(partial(self._note_cancelled, pending))
        with self._changed:
            heapq.heappush(self._waiting, pending)
        self._send_waiting()
        return pending.future

    def abort(self) -> None:
        """End everything with finish reason ``abort``: what waits at once, what is under way with what was sampled until now."""
        with self._changed:
            waiting = self._take_waiting()
            under_way = list(self._under_way)
        for pending in waiting:
            self._settle(pending, Completion((), (), "abort", self._user.weights_version))
        for pending in under_way:
            _abort_on_server(pending)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for what is under way, and send nothing for the duration of the block; what was submitted goes out afterwards."""
        with self._holding():
            with self._changed:
                self._changed.wait_for(self._is_quiet)
            yield

    @contextmanager
    def aborted(self) -> Iterator[None]:
        """Abort everything, as :meth:`abort` does, and send nothing for the duration of the block."""
        with self._holding():
            self.abort()
            with self._changed:
                self._changed.wait_for(self._is_quiet, timeout=ABORT_SECONDS)
                stragglers = list(self._under_way)
            for pending in stragglers:
                self._settle(pending, Completion((), (), "abort", self._user.weights_version))
                _withdraw(pending)
            yield

    def close(self) -> None:
        """Abort everything and end the thread."""
        with self.aborted():
            if self._thread is not None:
                self._thread.shutdown()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        with self._changed:
            self._holds += 1
        try:
            yield
        finally:
            with self._changed:
                self._holds -= 1
                # the caches to which tasks were sent are given up
                self._task_ranks.clear()
            self._send_waiting()

    def _is_quiet(self) -> bool:
        return not self._under_way and not self._preparing

    def _send_waiting(self) -> None:
        """Send what waits as far as there is room."""
        while (pending := self._next()) is not None:
            assert pending.target is not None
            try:
                call = pending.target.start(
                    pending.request, max_tokens=pending.max_tokens, rid=pending.rid, ranks=self._task_ranks
                )
            except ServerLost as error:
                self._ask_again(pending, error)
                continue
            pending.call = call
            if pending.settled:
                # given up before there was anything to withdraw
                _withdraw(pending)
            call.add_done_callback(partial(self._note_answer, pending))

    def _next(self) -> _Pending | None:
        """Return the next request to send, now under way; None where there is none, no room, or no server that is ready."""
        with self._changed:
            while self._waiting and self._waiting[0].settled:
                heapq.heappop(self._waiting)
            if not self._waiting or self._holds or len(self._under_way) >= self._max_concurrent:
                return None
            target = None if self._preparing or self._lost is not None else self._user.find_target()
            if target is None:
                self._begin_preparing()
                return None
            pending = heapq.heappop(self._waiting)
            pending.target = target
            pending.rid = uuid.uuid4().hex
            pending.call = None
            self._under_way.add(pending)
            return pending

    def _begin_preparing(self) -> None:
        """Have the thread make a server ready, unless it is at it."""
        if self._preparing:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sglang")
        self._preparing = True
        self._thread.submit(self._prepare)

    def _prepare(self) -> None:
        with self._changed:
            lost = self._lost
            losses = max((pending.losses for pending in self._waiting if not pending.settled), default=0)
        failed: list[_Pending] = []
        failure: Exception | None = None
        try:
            self._user.prepare_server(lost, losses)
        except Exception as error:
            failure = error
        with self._changed:
            self._preparing = False
            self._lost = None
            if failure is not None:
                failed = self._take_waiting()
            self._changed.notify_all()
        for pending in failed:
            assert failure is not None
            self._settle(pending, failure)
        self._send_waiting()

    def _note_answer(self, pending: _Pending, call: Future[Any]) -> None:
        """Resolve the future of what was answered and use the room that it leaves."""
        target = pending.target
        assert target is not None
        error = ServerLost(f"{target.server.client.url} has ended") if call.cancelled() else call.exception()
        if isinstance(error, ServerLost):
            self._ask_again(pending, error)
        elif isinstance(error, EngineError):
            self._give_up(pending, target, error)
        else:
            self._settle(pending, error or _read(target, pending.request, call.result()))
        self._send_waiting()

    def _ask_again(self, pending: _Pending, error: ServerLost) -> None:
        """Queue a request again whose server was lost, and have the server replaced unless that has happened."""
        assert pending.target is not None
        server = pending.target.server
        with self._changed:
            if pending.settled:
                return
            self._under_way.discard(pending)
            pending.losses += 1
            current = self._user.find_target()
            if current is not None and current.server is server:
                self._lost = server
            once_more = pending.losses <= self._max_restarts
            if once_more:
                heapq.heappush(self._waiting, pending)
            self._changed.notify_all()
        if not once_more:
            words = f"the server was lost {pending.losses} times in a row: {error}; {server.log_tail()}"
            self._settle(pending, EngineError(words))

    def _give_up(self, pending: _Pending, target: SamplingTarget, error: EngineError) -> None:
        """Abort what the server refused or did not answer in time, and tell the server where it may still be at work on it."""
        if pending.settled:
            return
        log.warning("a request is aborted: %s", error)
        if isinstance(error, RequestTimeout):
            target.abort(pending.rid)
        self._settle(pending, Completion((), (), "abort", target.version))

    def _settle(self, pending: _Pending, outcome: Completion | BaseException) -> None:
        """Resolve a future, once."""
        if not self._claim(pending) or not pending.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Completion):
            pending.future.set_result(outcome)
        else:
            pending.future.set_exception(outcome)

    def _claim(self, pending: _Pending) -> bool:
        """Take a request out of everything; return whether nobody did before."""
        with self._changed:
            if pending.settled:
                return False
            pending.settled = True
            self._under_way.discard(pending)
            self._changed.notify_all()
            return True

    def _take_waiting(self) -> list[_Pending]:
        waiting = self._waiting
        self._waiting = []
        return waiting

    def _note_cancelled(self, pending: _Pending, future: Future[Completion]) -> None:
        """Give up what somebody has cancelled."""
        if not future.cancelled() or not self._claim(pending):
            return
        future.set_running_or_notify_cancel()
        _withdraw(pending)
        self._send_waiting()


def _withdraw(pending: _Pending) -> None:
    """Have the server end a request whose answer nobody wants, and stop waiting for it."""
    _abort_on_server(pending)
    if pending.call is not None:
        pending.call.cancel()


def _abort_on_server(pending: _Pending) -> None:
    if pending.target is not None and pending.rid:
        pending.target.abort(pending.rid)


def _read(target: SamplingTarget, request: GenerationRequest, answer: Any) -> Completion | Exception:
    """Return the completion, or why the answer is none."""
    try:
        return target.read(answer, request)
    except Exception as error:
        return error
