"""The driver's engine of remote ranks: who is asked for what, what comes back when, and what happens when ranks die or hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from drmas_pl.cluster import remote_engine
from drmas_pl.cluster.rank_requests import RankRequests
from drmas_pl.cluster.remote_engine import DECODE_STEPS, RemoteEngine
from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import EngineError, GroupLost
from drmas_pl.testing import check_engine, tiny_policy
from drmas_pl.types import Completion, GenerationRequest, SamplingParams

Result = Callable[[], Any]


class Ranks:
    """Ranks in this process; calls work when their results are asked for.

    Attributes:
        sent: Method and arguments of every call to every rank.
        error: Raised instead of the next results.
    """

    timeout = 30.0

    def __init__(self, engines: Sequence[Engine], *, served: bool = False) -> None:
        self.engines = list(engines)
        self.served = served
        self.requests = [RankRequests(engine) for engine in engines]
        self.sent: list[tuple[int, str, tuple[Any, ...]]] = []
        self.error: Exception | None = None
        self.lost = self.asleep = False

    @property
    def rank_count(self) -> int:
        return len(self.requests)

    def require_awake(self) -> None:
        if self.asleep:
            raise EngineError("asleep")

    def begin_requests(
        self, method: str, *args: Any, each: Sequence[Sequence[Any]] = (), ranks: int | None = None
    ) -> list[Result]:
        if self.lost:
            raise GroupLost("worker group 'x' has lost its processes")
        results: list[Result] = []
        for rank, requests in enumerate(self.requests[:ranks]):
            given = (*args, *(each[rank] if each else ()))
            self.sent.append((rank, method, given))
            results.append(lambda requests=requests, given=given: self._call(requests, method, given))  # type: ignore[misc]
        if method in ("submit", "cancel"):
            for result in results:
                result()
        return results

    def finish_requests(self, refs: Sequence[Result], tasks: Sequence[str]) -> list[Any]:
        if self.error is not None:
            raise self.error
        return [result() for result in refs]

    def give_up_stuck(self, tasks: Sequence[str]) -> GroupLost:
        self.lost = True
        return GroupLost(f"stuck with {tasks}")

    @staticmethod
    def _call(requests: RankRequests, method: str, given: tuple[Any, ...]) -> Any:
        if method == "step":
            cancelled, count, new = given
            requests.cancel(cancelled)
            requests.submit(new)
            requests.step(count)
            return requests.collect()
        return getattr(requests, {"poll": "collect"}.get(method, method))(*given)

    def given(self, rank: int) -> list[tuple[Any, ...]]:
        """Return the orders of what a rank was asked for."""
        return [
            request.order
            for to, method, args in self.sent
            if to == rank and method in ("step", "submit")
            for _, request in args[-1]
        ]


class Awake(RemoteEngine):
    """Sleeps and wakes as a worker group has it do."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self.ranks = ranks
        self.context_length = ranks.engines[0].context_length

    def sync(self, version: int) -> None:
        super().sync(version)
        for engine in self.ranks.engines:
            engine.sync(version)

    def sleep(self) -> None:
        self.end_rollout()
        self.ranks.asleep = True
        for engine in self.ranks.engines:
            engine.sleep()

    def wake(self) -> None:
        self.ranks.asleep = False
        for engine in self.ranks.engines:
            engine.wake()


class Held(Engine):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.open: dict[int, Future[Completion]] = {}

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        self.open[request.prompt_ids[0]] = future = Future[Completion]()
        return future

    def answer(self, name: int) -> None:
        self.open[name].set_result(Completion((name,), (0.0,), "stop", 0))


def request(name: int, *order: Any) -> GenerationRequest:
    return GenerationRequest((name,), SamplingParams(max_new_tokens=4), seed=name, order=order)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_it_keeps_the_contract_of_every_engine() -> None:
    engines = [TransformersEngine(*tiny_policy(seed=3, context_length=64)) for _ in range(2)]
    check_engine(Awake(Ranks(engines)))


def test_requests_of_a_task_go_to_one_rank_and_new_tasks_to_the_one_with_less_to_do() -> None:
    ranks = Ranks([Held(), Held()])
    engine = RemoteEngine(ranks)
    orders = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("d", 0)]
    futures = [engine.submit(request(name, *order)) for name, order in reversed([*enumerate(orders)])]
    engine.step()
    assert ranks.given(0) == [("a", 0), ("a", 1), ("a", 2)]
    assert ranks.given(1) == [("b", 0), ("c", 0), ("d", 0)]
    for future in futures:
        future.cancel()
    ranks.sent.clear()
    for name, order in enumerate([("a", 3), ("d", 1), ("e", 0), ("f", 0)]):
        engine.submit(request(name, *order))
    engine.step()
    assert ranks.given(0) == [("a", 3), ("e", 0)] and ranks.given(1) == [("d", 1), ("f", 0)]


def test_requests_without_an_order_are_spread() -> None:
    ranks = Ranks([Held(), Held()])
    engine = RemoteEngine(ranks)
    for name in range(4):
        engine.submit(request(name))
    engine.step()
    assert len(ranks.given(0)) == len(ranks.given(1)) == 2


def test_a_step_is_bounded_and_answers_come_each_when_it_is_there() -> None:
    first, second = Held(), Held()
    engine = RemoteEngine(ranks := Ranks([first, second]))
    futures = [engine.submit(request(name, name)) for name in range(2)]
    assert not engine.idle
    engine.step()
    assert not any(future.done() for future in futures)
    second.answer(1)
    engine.step()
    assert [future.done() for future in futures] == [False, True] and not engine.idle
    first.answer(0)
    engine.step()
    assert futures[0].result().token_ids == (0,) and engine.idle
    assert {args[1] for _, method, args in ranks.sent if method == "step"} == {DECODE_STEPS}
    ranks.sent.clear()
    engine.step()
    assert ranks.sent == []


def test_ranks_work_between_the_begin_of_a_step_and_its_end() -> None:
    engine = RemoteEngine(ranks := Ranks([Held()]))
    engine.submit(request(1))
    finish = engine.begin_step()
    assert [method for _, method, _ in ranks.sent] == ["step"]
    finish()


@pytest.mark.parametrize("served", [False, True])
def test_a_cancelled_request_is_given_up_on_its_rank(served: bool) -> None:
    held = Held()
    engine = RemoteEngine(ranks := Ranks([held], served=served))
    kept, given_up, never_sent = (engine.submit(request(name)) for name in range(3))
    if not served:
        assert never_sent.cancel()
        engine.step()
        assert 2 not in held.open
    assert given_up.cancel() and given_up.cancelled()
    engine.step()
    wait_until(lambda: held.open[1].cancelled())
    held.answer(0)
    engine.step()
    assert kept.result(20.0).token_ids == (0,)
    engine.end_rollout()
    assert served or [args[0] for _, method, args in ranks.sent if method == "step" and args[0]] == [[1]]


def test_a_servers_answers_come_as_they_are_there_without_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "POLL_SECONDS", 0.01)
    held = Held()
    engine = RemoteEngine(ranks := Ranks([held, Held()], served=True))
    futures = [engine.submit(request(name, name)) for name in range(3)]
    assert engine.idle and not engine.needs_steps
    assert RemoteEngine(Ranks([held])).needs_steps
    assert len(ranks.given(0)) == 3 and ranks.given(1) == []
    for name in (2, 0, 1):
        held.answer(name)
        assert futures[name].result(20.0).token_ids == (name,)
    # asked again when the thread that collects may have ended
    wait_until(lambda: engine._forwarded._thread is None)
    late = engine.submit(request(7))
    held.answer(7)
    assert late.result(20.0).token_ids == (7,)


@pytest.mark.parametrize("served", [False, True])
def test_the_loss_of_a_rank_fails_everything_under_way(served: bool) -> None:
    ranks = Ranks([Held()], served=served)
    engine = RemoteEngine(ranks)
    ranks.error = GroupLost("generation lost a process")
    futures = [engine.submit(request(name)) for name in range(3)]
    engine.step()
    for future in futures:
        with pytest.raises(GroupLost, match="lost a process"):
            future.result(20.0)
    ranks.lost = True
    after = engine.submit(request(9))
    engine.step()
    with pytest.raises(GroupLost, match="has lost its processes"):
        after.result(20.0)
    assert engine.idle


def test_after_an_error_of_the_code_ranks_that_run_on_give_their_requests_up() -> None:
    held = Held()
    engine = RemoteEngine(ranks := Ranks([held]))
    first = engine.submit(request(1))
    engine.step()
    ranks.error = RuntimeError("out of memory")
    engine.step()
    with pytest.raises(RuntimeError, match="out of memory"):
        first.result()
    ranks.error = None
    engine.submit(request(2))
    engine.step()
    assert held.open[1].cancelled() and not held.open[2].cancelled()


def test_a_server_that_answers_nothing_any_more_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "POLL_SECONDS", 0.01)
    ranks = Ranks([Held()], served=True)
    ranks.timeout = 0.1
    future = RemoteEngine(ranks).submit(request(1, "t1"))
    with pytest.raises(GroupLost, match=r"stuck with \['t1'\]"):
        future.result(20.0)
    assert ranks.lost


@pytest.mark.parametrize("served", [False, True])
def test_the_end_of_a_rollout_fails_what_is_under_way(served: bool) -> None:
    held = Held()
    engine = RemoteEngine(Ranks([held], served=served))
    future = engine.submit(request(1))
    engine.step()
    engine.end_rollout()
    with pytest.raises(EngineError, match="the rollout ended before the request was answered"):
        future.result(20.0)
    assert engine.idle
    # what the rank has after all is nobody's any more
    held.answer(1)
    engine.step()


def test_many_threads_may_submit_to_a_server() -> None:
    held = Held()
    engine = RemoteEngine(Ranks([held], served=True))
    found: list[Future[Completion]] = []

    def ask(begin: int) -> None:
        for name in range(begin, begin + 50):
            found.append(engine.submit(request(name)))
            held.answer(name)

    threads = [threading.Thread(target=ask, args=(50 * at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(future.result(20.0).token_ids[0] for future in found) == list(range(200))
