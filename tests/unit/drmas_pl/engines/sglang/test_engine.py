"""The sglang engine against a strict small server: the contract, the order of things, and what happens when they go wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from drmas_pl.engines.sglang import server_manager
from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.testing import check_engine, tiny_policy
from drmas_pl.types import Completion, GenerationRequest, SamplingParams
from tests.helpers.fake_sglang import FakeSglang, cut, slow
from tests.helpers.pace import wait_until

REQUESTS = [
    GenerationRequest(
        (5, 6, 7 + task), SamplingParams(max_new_tokens=4), seed=9 * task + sample, order=(task, sample)
    )
    for task in range(3)
    for sample in range(2)
]


@pytest.fixture
def world() -> Iterator[tuple[Any, Any, FakeSglang]]:
    policy, tokenizer = tiny_policy(seed=3, context_length=128)
    fake = FakeSglang(policy, tokenizer)
    yield policy, tokenizer, fake
    fake.close()


def engine_for(world: tuple[Any, Any, FakeSglang], **settings: Any) -> SglangEngine:
    policy, tokenizer, fake = world
    server = ServerSettings(**{"start_timeout": 5.0, **settings.pop("server", {})})
    return SglangEngine(
        policy, tokenizer, url=fake.url, server=server, **{"request_timeout": 20.0, **settings}
    )


def train(policy: Any) -> None:
    """Change the weights as an update would."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.05)


def expected(world: tuple[Any, Any, FakeSglang]) -> list[Completion]:
    policy, tokenizer, _ = world
    return TransformersEngine(policy, tokenizer, reuse_prefixes=False).generate(REQUESTS)


def same(found: list[Completion], reference: list[Completion]) -> bool:
    return [c.token_ids for c in found] == [c.token_ids for c in reference]


@pytest.mark.parametrize(("sync", "release"), [("disk", "all"), ("tensor", "nothing")])
def test_it_keeps_the_contract_of_every_engine(world: Any, sync: Any, release: Any) -> None:
    engine = engine_for(world, sync=sync, release=release)
    engine.wake()
    check_engine(engine)
    engine.close()
    with pytest.raises(EngineError, match="the engine is closed; call wake"):
        engine.generate(REQUESTS)
    with pytest.raises(EngineError, match="closed for good"):
        engine.wake()


def test_it_samples_what_the_policy_would_with_its_log_probs(world: Any) -> None:
    engine = engine_for(world)
    engine.wake()
    found, reference = engine.generate(REQUESTS), expected(world)
    assert same(found, reference) and [c.finish_reason for c in found] == [c.finish_reason for c in reference]
    for left, right in zip(found, reference):
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-5)


def test_new_weights_are_sent_once_probed_and_stamped(world: Any) -> None:
    policy, _, fake = world
    engine = engine_for(world)
    engine.wake()
    engine.generate(REQUESTS)
    train(policy)
    engine.sync(3)
    assert (
        engine.generate(REQUESTS)[0].weights_version == 3
        and engine.generate(REQUESTS)[0].weights_version == 3
    )
    update = ["/pause_generation", "/flush_cache", "/update_weights_from_disk", "/continue_generation"]
    assert fake.paths() == update * 2 and fake.weight_version == "3"
    assert same(engine.generate(REQUESTS), expected(world))


def test_a_sleeping_engine_takes_new_weights_when_it_is_next_used(world: Any) -> None:
    policy, _, fake = world
    engine = engine_for(world)
    engine.sync(5)
    assert fake.calls == []
    train(policy)
    engine.wake()
    assert engine.generate(REQUESTS)[0].weights_version == 5 and same(
        engine.generate(REQUESTS), expected(world)
    )


def test_memory_is_given_back_and_taken_again_in_the_right_order(world: Any) -> None:
    policy, _, fake = world
    engine = engine_for(world, release="all")
    engine.wake()
    engine.generate(REQUESTS)
    fake.calls.clear()
    engine.sleep()
    assert fake.paths() == [
        "/pause_generation",
        "/flush_cache",
        "/release_memory_occupation",
    ] and fake.released == {"weights", "kv_cache"}
    fake.calls.clear()
    train(policy)
    engine.wake()
    assert fake.released == {"kv_cache"}
    engine.sync(1)
    resume = "/resume_memory_occupation"
    assert fake.paths() == [resume, "/update_weights_from_disk", resume, "/continue_generation"]
    assert [body["tags"] for body in fake.bodies(resume)] == [["weights"], ["kv_cache"]]
    assert same(engine.generate(REQUESTS), expected(world))


@pytest.mark.parametrize("stay", ["answered", "suspended", "cancelled"])
def test_sleep_and_sync_wait_until_the_server_has_cleared_its_requests(world: Any, stay: str) -> None:
    policy, _, fake = world
    engine = engine_for(world, release="all")
    engine.wake()
    engine.generate(REQUESTS)
    fake.clearing = 0.2
    for version in (1, 2):
        leave_requests(engine, fake, stay)
        fake.calls.clear()
        engine.sleep()
        *waiting, release = fake.paths(but=("/generate", "/abort_request"))
        assert len(waiting) > 2 and waiting == ["/pause_generation", "/flush_cache"] * (len(waiting) // 2)
        assert release == "/release_memory_occupation" and fake.released == {"weights", "kv_cache"}
        engine.wake()
        leave_requests(engine, fake, stay)
        train(policy)
        fake.calls.clear()
        engine.sync(version)
        assert fake.paths().count("/flush_cache") > 1
        assert same(engine.generate(REQUESTS), expected(world))


def leave_requests(engine: SglangEngine, fake: FakeSglang, stay: str) -> None:
    """Have the server hold requests that nobody waits for any more."""
    engine.generate(REQUESTS)
    if stay == "answered":
        return
    fake.delay = lambda body: 20.0
    futures = [engine.submit(request) for request in REQUESTS]
    wait_until(lambda: fake.busy == len(REQUESTS))
    fake.delay = lambda body: 0.0
    if stay == "suspended":
        engine.suspend()
    for future in futures:
        assert stay == "suspended" or future.cancel()


def test_a_server_that_keeps_its_requests_is_told_and_may_be_asked_again(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, fake = world
    engine = engine_for(world, release="all")
    engine.wake()
    reference = engine.generate(REQUESTS)
    monkeypatch.setattr(server_manager, "IDLE_SECONDS", 0.2)
    fake.hooks["/flush_cache"] = lambda body: (400, "Flush cache failed.")
    with pytest.raises(
        EngineError, match=r"still has some 0\.2 s later .*Flush cache failed.*serve nobody else"
    ):
        engine.sleep()
    assert not fake.released
    engine.wake()
    assert same(engine.generate(REQUESTS), reference)
    fake.hooks["/flush_cache"] = lambda body: (500, "out of order")
    fake.calls.clear()
    with pytest.raises(EngineError, match="answered 500: out of order"):
        engine.sleep()
    assert fake.paths() == ["/pause_generation", "/flush_cache"]
    del fake.hooks["/flush_cache"]
    engine.wake()
    engine.generate(REQUESTS)
    engine.sleep()
    assert fake.released == {"weights", "kv_cache"}


def test_lost_weights_come_back_although_no_version_changed(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world, release="all")
    for _ in range(2):
        engine.wake()
        assert same(engine.generate(REQUESTS), expected(world))
        engine.sleep()
    assert len(fake.bodies("/update_weights_from_disk")) == 2


def test_a_sleeping_engine_refuses_and_sleeping_twice_is_one_sleep(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world, release="cache")
    with pytest.raises(EngineError, match="the engine is asleep; call wake"):
        engine.generate(REQUESTS)
    engine.wake()
    engine.generate(REQUESTS)
    engine.sleep()
    engine.sleep()
    assert len(fake.bodies("/release_memory_occupation")) == 1 and fake.bodies("/release_memory_occupation")[
        0
    ] == {"tags": ["kv_cache"]}


def test_weights_that_did_not_arrive_are_noticed(world: Any) -> None:
    policy, _, fake = world
    engine = engine_for(world)
    engine.wake()
    engine.generate(REQUESTS)
    train(policy)
    fake.hooks["/update_weights_from_disk"] = lambda body: (200, {"success": True})
    with pytest.raises(EngineError, match=r"differ from the trainer's by .* on the probe, more than 0.001"):
        engine.sync(1)
    tolerant = engine_for(world, probe_tolerance=1e9)
    tolerant.wake()
    with pytest.raises(EngineError, match="sampled with weights '0', but version 2"):
        tolerant.sync(2)
        tolerant.generate(REQUESTS)


def test_a_refused_update_is_an_error_with_its_reason(world: Any) -> None:
    _, _, fake = world
    fake.hooks["/update_weights_from_disk"] = lambda body: (
        200,
        {"success": False, "message": "shapes differ"},
    )
    engine = engine_for(world)
    engine.wake()
    with pytest.raises(EngineError, match="the server did not load weights from disk: shapes differ"):
        engine.sync(1)


def test_requests_say_everything_and_those_of_a_task_come_together(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world, max_concurrent=1)
    engine.wake()
    engine.generate([])
    engine.generate([REQUESTS[i] for i in (5, 0, 3, 1, 4, 2)])
    bodies = [body for body in fake.bodies("/generate") if "logprob_start_len" not in body]
    assert [body["input_ids"][2] for body in bodies] == [7, 7, 8, 8, 9, 9] and fake.busiest == 1
    assert [body["sampling_params"]["sampling_seed"] for body in bodies] == [0, 1, 9, 10, 18, 19]
    assert (
        len({body["rid"] for body in bodies}) == 6
        and "data_parallel_rank" not in bodies[0]
        and "routed_dp_rank" not in bodies[0]
    )
    sampling = bodies[0]["sampling_params"]
    assert (
        sampling["no_stop_trim"] is True
        and sampling["max_new_tokens"] == 4
        and sampling["stop_token_ids"] == sorted(engine.stop_token_ids)
    )


def test_a_response_ends_where_the_in_process_engine_ends_it(world: Any) -> None:
    policy, tokenizer, _ = world
    policy.generation_config.eos_token_id = [tokenizer.eos_token_id, 9]
    engine = engine_for(world)
    assert engine.stop_token_ids == TransformersEngine(policy, tokenizer).stop_token_ids == {257, 9}
    engine.close()


def test_concurrency_is_bounded(world: Any) -> None:
    _, _, fake = world
    fake.hooks["/generate"] = slow(0.02, lambda body: True)
    engine = engine_for(world, max_concurrent=2)
    engine.wake()
    engine.generate(REQUESTS)
    assert fake.busiest == 2


def test_copies_of_the_weights_share_the_tasks_and_want_the_disk(world: Any) -> None:
    _, _, fake = world
    fake.info |= {"dp_size": 2, "version": "0.5.3"}
    engine = engine_for(world)
    engine.wake()
    engine.generate(REQUESTS)
    bodies = [body for body in fake.bodies("/generate") if "logprob_start_len" not in body]
    ranks = {body["input_ids"][2]: body["data_parallel_rank"] for body in bodies}
    assert ranks == {7: 0, 8: 1, 9: 0}
    with pytest.raises(EngineError, match=r"has 2 copies of the weights; use engine\.sync=disk"):
        engine_for(world, sync="group").wake()


def test_a_cut_connection_is_taken_up_again_and_answers_are_those_it_would_have_given(
    world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, fake = world
    engine = engine_for(world)
    engine.wake()
    reference = engine.generate(REQUESTS)
    fake.hooks["/generate"] = cut(2)
    with caplog.at_level(logging.WARNING):
        assert same(engine.generate(REQUESTS), reference)
    assert "the server was lost and is started again" in caplog.text
    asked = [body["sampling_params"].get("sampling_seed") for body in fake.bodies("/generate")]
    assert asked.count(0) + asked.count(1) <= 6


def test_a_detached_engine_needs_nothing_of_the_trainer(world: Any) -> None:
    policy, _, fake = world
    engine, reference = engine_for(world), expected(world)
    engine.wake()
    engine.detach()
    fake.calls.clear()
    train(policy)
    assert same(engine.generate(REQUESTS), reference) and fake.paths() == []
    engine.sync(1)
    assert same(engine.generate(REQUESTS), expected(world))


def test_a_server_that_a_detached_engine_loses_cannot_be_replaced_until_the_next_sync(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world)
    engine.wake()
    engine.detach()
    fake.hooks["/generate"] = cut(1)
    with pytest.raises(
        EngineError,
        match="the server was lost while the trainer moved on from weights 0, with which alone it could be",
    ):
        engine.generate(REQUESTS)
    engine.sync(1)
    assert same(engine.generate(REQUESTS), expected(world))


@pytest.mark.parametrize(
    ("release", "own"), [("nothing", True), ("cache", False), ("all", False), (None, True)]
)
def test_a_server_that_gives_nothing_back_has_weights_of_its_own(world: Any, release: Any, own: bool) -> None:
    assert engine_for(world, release=release).own_weights is own


def test_a_server_that_is_lost_for_good_is_an_error(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world, max_restarts=1)
    engine.wake()
    fake.hooks["/generate"] = cut(1000)
    with pytest.raises(EngineError, match=r"the server was lost 2 times in a row: .* is not ours"):
        engine.generate(REQUESTS)


def test_a_server_that_is_gone_when_it_should_sleep_is_a_warning(
    world: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, fake = world
    engine = engine_for(world, release="all")
    engine.wake()
    engine.generate(REQUESTS)
    fake.hooks["/pause_generation"] = cut(1)
    with caplog.at_level(logging.WARNING):
        engine.sleep()
    assert "will be started again when it is needed" in caplog.text
    engine.wake()
    assert same(engine.generate(REQUESTS), expected(world))


def test_a_request_that_is_refused_or_late_is_aborted_alone(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world, request_timeout=1.0)
    engine.wake()
    reference = engine.generate(REQUESTS)
    fake.hooks["/generate"] = lambda body: (
        (400, {"error": {"message": "too long"}}) if body["input_ids"][2] == 8 else None
    )
    reasons = [completion.finish_reason for completion in engine.generate(REQUESTS)]
    assert [reason == "abort" for reason in reasons] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ] and not fake.bodies("/abort_request")
    fake.hooks["/generate"] = slow(1.5, lambda body: body["sampling_params"].get("sampling_seed") == 0)
    late = engine.generate(REQUESTS)
    assert late[0] == Completion((), (), "abort", 0) and same(late[1:], reference[1:])
    wait_until(lambda: bool(fake.bodies("/abort_request")))
    (abort,) = fake.bodies("/abort_request")
    assert abort["rid"] in [body.get("rid") for body in fake.bodies("/generate")]


def test_an_abort_of_the_server_is_passed_on(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world)
    engine.wake()
    engine.generate(REQUESTS)
    meta = {
        "finish_reason": {"type": "abort", "message": "paused"},
        "output_token_logprobs": [[-1.0, 4, None]],
    }
    fake.hooks["/generate"] = lambda body: (200, {"output_ids": [4, 5], "meta_info": meta})
    assert engine.generate(REQUESTS[:1]) == [Completion((4,), (-1.0,), "abort", 0)]


def test_servers_of_several_engines_work_at_a_time(world: Any) -> None:
    policy, tokenizer, fake = world
    other = FakeSglang(policy, tokenizer)
    engines = [engine_for(world), engine_for((policy, tokenizer, other))]
    meeting = threading.Barrier(2, timeout=20.0)
    for engine in engines:
        engine.wake()
        engine.generate(REQUESTS[:1])
    for server in (fake, other):
        server.hooks["/generate"] = lambda body: (meeting.wait(), None)[1]
    futures = [engine.submit(REQUESTS[0]) for engine in engines]
    assert all(same([future.result(20.0)], expected(world)[:1]) for future in futures)
    for engine in engines:
        engine.close()
    other.close()


def test_an_interrupt_while_the_server_works_aborts_its_work(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world)
    engine.wake()
    engine.generate(REQUESTS)
    fake.delay = lambda body: 20.0

    def interrupt(body: Any) -> None:
        if body["sampling_params"]["sampling_seed"] == 0:
            wait_for_main_thread("result")
            os.kill(os.getpid(), signal.SIGINT)

    fake.hooks["/generate"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.generate(REQUESTS)
    wait_until(lambda: len(fake.bodies("/abort_request")) == len(REQUESTS))
    engine.close()


def wait_for_main_thread(function: str) -> None:
    """Wait until the main thread is inside a function: an interrupt anywhere else is another case."""
    main = threading.main_thread().ident
    assert main is not None
    while True:
        frame = sys._current_frames()[main]
        while frame is not None:
            if frame.f_code.co_name == function:
                return
            frame = frame.f_back
        time.sleep(0.001)


def test_work_that_nobody_waits_for_any_more_ends_with_the_engine(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world)
    engine.wake()
    engine.generate(REQUESTS)
    fake.delay = lambda body: 20.0
    future = engine.submit(REQUESTS[0])
    wait_until(lambda: fake.busy == 1)
    engine.close()
    assert future.result().finish_reason == "abort" and len(fake.bodies("/abort_request")) == 1


def test_a_running_event_loop_is_no_obstacle(world: Any) -> None:
    engine = engine_for(world)

    async def inside() -> list[Completion]:
        engine.wake()
        return engine.generate(REQUESTS)

    assert same(asyncio.run(inside()), expected(world))


def test_ids_outside_the_vocabulary_never_reach_the_server(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world)
    engine.wake()
    for token in (10**6, -1):
        with pytest.raises(EngineError, match=f"a prompt holds id {token}, but the model's ids are 0 to"):
            engine.generate([GenerationRequest((1, token, 2), SamplingParams(), seed=0)])
    assert not fake.bodies("/generate")


def test_the_shorter_context_counts(world: Any) -> None:
    _, _, fake = world
    assert (
        engine_for(world).context_length == 122
        and engine_for(world, server={"context_length": 60}).context_length == 54
    )
    fake.info["max_req_input_len"] = 50
    engine = engine_for(world)
    engine.wake()
    assert engine.context_length == 50


def test_threads_of_closed_engines_end(world: Any) -> None:
    _, _, fake = world
    engine = engine_for(world)
    engine.wake()
    engine.generate(REQUESTS)
    others = {thread for thread in threading.enumerate() if fake.url not in thread.name}
    thread = engine._dispatcher._thread
    assert thread is not None and len(others & thread._threads) == 1
    engine.close()
    engine.close()
    assert not any(fake.url in thread.name for thread in threading.enumerate())
    assert not any(worker.is_alive() for worker in thread._threads)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "got neither"),
        ({"python": "python", "url": "http://x"}, "got both"),
        ({"python": "/nowhere/python"}, "engine.python='/nowhere/python' is no program"),
        ({"url": "x:1"}, "engine.url='x:1' is no address"),
        (
            {"url": "http://x", "sync": "smoke"},
            r"engine.sync must be one of \['disk', 'group', 'tensor'\], got 'smoke'",
        ),
        ({"url": "http://x", "max_concurrent": 0}, "engine.max_concurrent must be at least 1"),
        (
            {"url": "http://x", "sync": "group", "server": ServerSettings(data_parallel=2)},
            "reaches one copy of the weights",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SglangEngine(*tiny_policy(), **settings)


def test_more_connections_than_open_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    SglangEngine(*tiny_policy(), url="http://x", max_concurrent=768).close()
    with pytest.raises(
        ConfigError, match=r"max_concurrent=769 .* may have 1024 open files; .*`ulimit -n 1025`"
    ):
        SglangEngine(*tiny_policy(), url="http://x", max_concurrent=769)


def test_a_server_that_never_answers_is_an_error_and_leaves_the_engine_asleep() -> None:
    engine = SglangEngine(*tiny_policy(), url="http://127.0.0.1:9", server=ServerSettings(start_timeout=0.1))
    with pytest.raises(EngineError, match=r"did not answer within 0.1 s .*raise engine.server.start_timeout"):
        engine.wake()
    with pytest.raises(EngineError, match="asleep"):
        engine.generate(REQUESTS)
