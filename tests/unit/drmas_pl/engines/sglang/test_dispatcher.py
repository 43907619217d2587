"""Requests on their way to servers: each is answered when it is done, bounded, cancelled, asked again, and ordered around new weights."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from drmas_pl.engines.sglang import client as client_module
from drmas_pl.engines.sglang import dispatcher as dispatcher_module
from drmas_pl.engines.sglang import server_manager
from drmas_pl.engines.sglang.client import Client
from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.server import Server, attach
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import EngineError
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Completion, GenerationRequest, SamplingParams
from tests.helpers.fake_sglang import Answer, FakeSglang
from tests.helpers.pace import allowed

POLICY, TOKENIZER = tiny_policy(seed=3, context_length=128)
Build = Callable[..., SglangEngine]


def request(seed: int, task: int = 0) -> GenerationRequest:
    return GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=4), seed=seed, order=(task, seed))


def seed_of(body: Mapping[str, Any]) -> int:
    """Return the seed of a request to the server; -1 of a check of weights."""
    return int(body["sampling_params"].get("sampling_seed", -1))


def expected(*seeds: int, policy: Any = POLICY) -> list[tuple[int, ...]]:
    engine = TransformersEngine(policy, TOKENIZER, reuse_prefixes=False)
    return [completion.token_ids for completion in engine.generate([request(seed) for seed in seeds])]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def fake() -> Iterator[FakeSglang]:
    server = FakeSglang(POLICY, TOKENIZER)
    yield server
    server.close()


@pytest.fixture
def build(fake: FakeSglang) -> Iterator[Build]:
    """Builds engines of the running server, awake and ready."""
    engines: list[SglangEngine] = []

    def make(policy: Any = POLICY, **settings: Any) -> SglangEngine:
        server = ServerSettings(start_timeout=5.0)
        more = {"request_timeout": 30.0, **settings}
        engine = SglangEngine(policy, TOKENIZER, url=fake.url, server=server, **more)
        engines.append(engine)
        engine.wake()
        engine.sync(0)
        fake.calls.clear()
        return engine

    yield make
    for engine in engines:
        engine.close()


def test_completions_arrive_when_they_are_done_and_not_as_they_were_asked_for(
    fake: FakeSglang, build: Build
) -> None:
    engine = build()
    delays = [0.4, 0.1, 0.3, 0.0, 0.2]
    fake.delay = lambda body: allowed(delays[seed_of(body)])
    arrived: list[int] = []
    futures = [engine.submit(request(seed)) for seed in range(5)]
    for seed, future in enumerate(futures):
        future.add_done_callback(lambda _, seed=seed: arrived.append(seed))  # type: ignore[misc]
    assert engine.idle and not engine.needs_steps
    assert [future.result(20.0).token_ids for future in futures] == expected(*range(5))
    assert arrived == [3, 1, 4, 2, 0]


def canned(seconds: float) -> Callable[[Mapping[str, Any]], Answer]:
    """Return a hook that answers with the seed after a time, without a model."""

    def hook(body: Mapping[str, Any]) -> Answer:
        time.sleep(seconds)
        meta = {
            "finish_reason": {"type": "length"},
            "output_token_logprobs": [[-0.5, seed_of(body), None]],
            "weight_version": "0",
        }
        return 200, {"output_ids": [seed_of(body)], "meta_info": meta}

    return hook


def test_a_thousand_requests_are_under_way_at_once(fake: FakeSglang, build: Build) -> None:
    engine = build(max_concurrent=1000)
    everybody = threading.Barrier(1000, timeout=60.0)
    answer = canned(0.0)
    fake.hooks["/generate"] = lambda body: (everybody.wait(), answer(body))[1]
    found = engine.generate([request(seed, task=seed % 100) for seed in range(1000)])
    assert [completion.token_ids for completion in found] == [(seed,) for seed in range(1000)]
    assert fake.busiest == 1000


def test_more_than_may_be_under_way_wait_and_go_in_order(fake: FakeSglang, build: Build) -> None:
    engine = build(max_concurrent=3)
    go = threading.Event()
    answer = canned(0.001)
    fake.hooks["/generate"] = lambda body: (go.wait(20.0), answer(body))[1]
    fake.busiest = 0
    tasks = [0, 0, 0, 9, 4, 7, 5, 8, 6]
    futures = [engine.submit(request(seed, task)) for seed, task in enumerate(tasks)]
    wait_until(lambda: fake.busy == 3)
    go.set()
    assert [future.result(20.0).token_ids for future in futures] == [(seed,) for seed in range(9)]
    sent = [seed_of(body) for body in fake.bodies("/generate")]
    assert fake.busiest == 3 and sorted(sent[:3]) == [0, 1, 2]
    # three are under way at a time, so that each may be overtaken by two
    assert all(abs(at - [4, 6, 8, 5, 7, 3].index(seed)) <= 2 for at, seed in enumerate(sent[3:]))


def test_cancelling_reaches_the_server_and_makes_room(fake: FakeSglang, build: Build) -> None:
    engine = build(max_concurrent=1)
    fake.delay = lambda body: 20.0 if seed_of(body) == 0 else 0.0
    slow, waiting, after = (engine.submit(request(seed, task=seed)) for seed in range(3))
    wait_until(lambda: fake.busy == 1)
    assert waiting.cancel() and slow.cancel()
    assert after.result(20.0).token_ids == expected(2)[0]
    wait_until(lambda: bool(fake.bodies("/abort_request")))
    (asked, _) = fake.bodies("/generate")
    assert [body["rid"] for body in fake.bodies("/abort_request")] == [asked["rid"]]
    assert slow.cancelled() and waiting.cancelled()
    assert wait_for_futures([slow, waiting], timeout=1.0).not_done == set()
    assert not after.cancel()


def test_abort_ends_what_is_under_way_with_what_there_is_and_what_waits_with_nothing(
    fake: FakeSglang, build: Build
) -> None:
    engine = build(max_concurrent=1)
    fake.delay = lambda body: 20.0 if seed_of(body) == 0 else 0.0
    under_way, waiting = (engine.submit(request(seed, task=seed)) for seed in range(2))
    wait_until(lambda: fake.busy == 1)
    engine.suspend()
    assert waiting.result(20.0) == Completion((), (), "abort", 0)
    found = under_way.result(20.0)
    assert found.finish_reason == "abort" and found.token_ids == expected(0)[0][:1]
    assert engine.generate([request(1)])[0].token_ids == expected(1)[0]


def test_sleeping_aborts_what_is_under_way_before_memory_is_released(fake: FakeSglang, build: Build) -> None:
    engine = build(release="all")
    fake.delay = lambda body: 20.0
    futures = [engine.submit(request(seed)) for seed in range(3)]
    wait_until(lambda: fake.busy == 3)
    engine.sleep()
    assert [future.result(0).finish_reason for future in futures] == ["abort"] * 3
    assert fake.paths() == ["/abort_request"] * 3 + [
        "/pause_generation",
        "/flush_cache",
        "/release_memory_occupation",
    ]
    with pytest.raises(EngineError, match="the engine is asleep; call wake"):
        engine.submit(request(0))
    fake.delay = lambda body: 0.0
    engine.wake()
    assert engine.generate([request(0)])[0].token_ids == expected(0)[0]


def test_a_server_that_does_not_abort_is_not_waited_for(
    fake: FakeSglang, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "ABORT_SECONDS", 0.1)
    engine = build()
    leave = threading.Event()
    fake.hooks["/generate"] = lambda body: (leave.wait(20.0), None)[1]
    future = engine.submit(request(0))
    wait_until(lambda: fake.busy == 1)
    engine.sleep()
    assert future.result(0) == Completion((), (), "abort", 0)
    leave.set()


def test_new_weights_wait_for_what_is_under_way_and_what_comes_meanwhile_gets_them(
    fake: FakeSglang, build: Build
) -> None:
    policy, _ = tiny_policy(seed=3, context_length=128)
    engine = build(policy)
    before = expected(0, 1, policy=policy)
    answered = threading.Event()
    fake.hooks["/generate"] = lambda body: (answered.wait(20.0), None)[1] if seed_of(body) == 0 else None
    first = engine.submit(request(0))
    wait_until(lambda: fake.busy == 1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    update = threading.Thread(target=engine.sync, args=(1,))
    update.start()
    wait_until(lambda: engine._dispatcher._holds == 1)
    second = engine.submit(request(1))
    assert fake.paths() == [] and not second.done()
    answered.set()
    update.join(20.0)
    assert (first.result(0).token_ids, first.result(0).weights_version) == (before[0], 0)
    assert second.result(20.0).weights_version == 1
    assert second.result().token_ids == expected(1, policy=policy)[0] != before[1]


def test_detaching_lets_what_is_under_way_go_on(fake: FakeSglang, build: Build) -> None:
    engine = build()
    fake.delay = lambda body: allowed(0.2)
    future = engine.submit(request(0))
    wait_until(lambda: fake.busy == 1)
    engine.detach()
    assert not future.done() and future.result(20.0).token_ids == expected(0)[0]


def test_what_cannot_be_answered_fails_its_own_future(fake: FakeSglang, build: Build) -> None:
    engine = build()
    asked = [(), (10**6,), (5,) * 200, (5, 6, 7)]
    futures = [
        engine.submit(GenerationRequest(ids, SamplingParams(max_new_tokens=4), seed=0)) for ids in asked
    ]
    messages = ["has an empty prompt", "holds id 1000000", "leaves no room in a context of 122"]
    for future, message in zip(futures, messages):
        with pytest.raises(EngineError, match=message):
            future.result(20.0)
    assert futures[3].result(20.0).token_ids == expected(0)[0]
    fake.hooks["/generate"] = lambda body: (
        (200, {"output_ids": [1], "meta_info": {}}) if seed_of(body) else None
    )
    odd, fine = engine.submit(request(1)), engine.submit(request(0))
    with pytest.raises(EngineError, match="the server ended a response with None"):
        odd.result(20.0)
    assert fine.result(20.0).token_ids == expected(0)[0]


def test_weights_that_do_not_arrive_fail_everything_that_waits_for_them(
    fake: FakeSglang, build: Build
) -> None:
    engine = build()
    fake.hooks["/update_weights_from_disk"] = lambda body: (200, {"success": False, "message": "full"})
    engine._session.outdate()
    futures = [engine.submit(request(seed)) for seed in range(3)]
    for future in futures:
        with pytest.raises(EngineError, match="did not load weights from disk: full"):
            future.result(20.0)
    fake.hooks.clear()
    assert engine.generate([request(0)])[0].token_ids == expected(0)[0]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeSglang]]:
    """Servers that were started, each in a thread in place of a process."""
    fakes: list[FakeSglang] = []

    def launch(python: str, settings: Any, *, model: Path, version: int, client: Any, **more: Any) -> Server:
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        fakes.append(FakeSglang(policy, TOKENIZER))
        fakes[-1].weight_version = str(version)
        return attach(fakes[-1].url, start_timeout=5.0, client=client)

    monkeypatch.setattr(server_manager, "launch", launch)
    yield fakes
    for fake in fakes:
        fake.close()


def launched(**settings: Any) -> SglangEngine:
    engine = SglangEngine(
        POLICY, TOKENIZER, python=sys.executable, server=ServerSettings(device="cpu"), **settings
    )
    engine.wake()
    engine.sync(0)
    return engine


def die_when(dying: threading.Event) -> Callable[[Mapping[str, Any]], None]:
    """Return a hook that cuts every connection once the server dies."""

    def hook(body: Mapping[str, Any]) -> None:
        assert dying.wait(20.0)
        raise ConnectionAbortedError

    return hook


def test_a_server_that_dies_is_started_again_once_and_asked_for_all_that_it_had_not_answered(
    started: list[FakeSglang], caplog: pytest.LogCaptureFixture
) -> None:
    engine = launched(max_concurrent=6)
    first = engine.submit(request(0))
    assert first.result(20.0).token_ids == expected(0)[0]
    dying = threading.Event()
    started[0].hooks["/generate"] = die_when(dying)
    futures = [engine.submit(request(seed)) for seed in range(12)]
    wait_until(lambda: started[0].busy == 6)
    with caplog.at_level(logging.WARNING):
        dying.set()
        assert [future.result(20.0).token_ids for future in futures] == expected(*range(12))
    assert len(started) == 2 and caplog.text.count("is started again") == 1
    asked = [seed_of(body) for body in started[1].bodies("/generate") if "rid" in body]
    assert sorted(asked) == list(range(12))
    engine.close()


def test_a_process_that_ends_while_its_connections_stay_open_is_noticed(
    started: list[FakeSglang], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "WATCH_SECONDS", 0.01)
    engine = launched()
    alive = threading.Event()
    alive.set()
    server = engine._manager.server
    assert server is not None
    server.client.watch(alive.is_set)
    leave = threading.Event()
    started[0].hooks["/generate"] = lambda body: (leave.wait(20.0), None)[1]
    future = engine.submit(request(3))
    wait_until(lambda: started[0].busy == 1)
    alive.clear()
    assert future.result(20.0).token_ids == expected(3)[0] and len(started) == 2
    leave.set()
    engine.close()


def test_a_request_that_every_server_dies_of_fails_alone(
    started: list[FakeSglang], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = launched(max_restarts=1, max_concurrent=1)
    deadly = threading.Event()
    deadly.set()

    def die_of_seven(fake: FakeSglang) -> None:
        fake.hooks["/generate"] = lambda body: die_when(deadly)(body) if seed_of(body) == 7 else None

    start = server_manager.launch

    def launch(*args: Any, **more: Any) -> Server:
        server = start(*args, **more)
        die_of_seven(started[-1])
        return server

    monkeypatch.setattr(server_manager, "launch", launch)
    die_of_seven(started[0])
    futures = {seed: engine.submit(request(seed, task=seed)) for seed in (6, 7, 8)}
    with pytest.raises(EngineError, match=r"the server was lost 2 times in a row: .* went away"):
        futures[7].result(20.0)
    assert futures[6].result(20.0).token_ids == expected(6)[0]
    assert futures[8].result(20.0).token_ids == expected(8)[0]
    assert len(started) == 3
    engine.close()


def test_closing_ends_everything_and_refuses_more(fake: FakeSglang, build: Build) -> None:
    engine = build(max_concurrent=1)
    fake.delay = lambda body: 20.0
    futures: list[Future[Completion]] = [engine.submit(request(seed)) for seed in range(3)]
    wait_until(lambda: fake.busy == 1)
    engine.close()
    assert [future.result(0).finish_reason for future in futures] == ["abort"] * 3
    with pytest.raises(EngineError, match="the engine is closed"):
        engine.submit(request(0))


def test_a_request_that_is_cancelled_before_it_is_sent_is_withdrawn(
    fake: FakeSglang, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build()
    start = Client.start
    handles: list[Future[Completion]] = []

    def start_late(client: Client, path: str, *args: Any, **more: Any) -> Future[Any]:
        if path == "/generate":
            wait_until(lambda: engine._dispatcher._under_way != set())
            (pending,) = engine._dispatcher._under_way
            pending.future.cancel()
            handles.append(pending.future)
        return start(client, path, *args, **more)

    monkeypatch.setattr(Client, "start", start_late)
    assert engine.submit(request(0)).cancelled() and handles[0].cancelled()
    wait_until(lambda: bool(fake.bodies("/abort_request")))
    assert not engine._dispatcher._under_way
