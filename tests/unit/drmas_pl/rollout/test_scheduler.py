"""Who goes on when: nobody waits for others, threads do not decide what is computed together, and what is given up is given up."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from drmas_pl.engines.base import Engine
from drmas_pl.errors import EngineError, EnvironmentFault
from drmas_pl.rollout.env_threads import EnvThreads
from drmas_pl.rollout.scheduler import Scheduler
from drmas_pl.types import Completion, GenerationRequest, SamplingParams
from tests.helpers.pace import allowed
from tests.helpers.timed_engines import SteppedEngine, ThreadedEngine, echo


def request(number: int, length: int = 1, order: int | None = None) -> GenerationRequest:
    return GenerationRequest(
        (number,) * length, SamplingParams(), seed=number, order=(number if order is None else order,)
    )


def answer(asked: GenerationRequest) -> Completion:
    return echo([asked])[0]


class Manual(Engine):
    """Works by itself, that is, when the test says so."""

    context_length = 10

    def __init__(self) -> None:
        self.futures: dict[int, Future[Completion]] = {}

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        future = self.futures[request.prompt_ids[0]] = Future[Completion]()
        return future

    @property
    def idle(self) -> bool:
        return True


def run(scheduler: Scheduler, *coroutines: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scheduler.run(coroutines))


def test_engines_with_a_submit_of_their_own_work_by_themselves() -> None:
    class Batches(Engine):
        def generate(self, requests: Any) -> Any:
            return echo(requests)

    assert Batches().needs_steps
    assert SteppedEngine(answer, lambda _: 1).needs_steps
    assert not Manual().needs_steps


def test_a_trajectory_goes_on_while_another_ones_completion_is_missing() -> None:
    engine, told = Manual(), list[str]()
    scheduler = Scheduler([engine])

    async def speak(name: str, first: int) -> None:
        for number in (first, first + 1):
            await scheduler.complete([(engine, request(number))])
            told.append(f"{name}{number}")

    async def resolve() -> None:
        for number in (20, 21, 10, 11):
            while number not in engine.futures:
                await asyncio.sleep(0)
            engine.futures[number].set_result(answer(request(number)))
            await asyncio.sleep(0)

    run(scheduler, speak("a", 10), speak("b", 20), resolve())
    assert told == ["b20", "b21", "a10", "a11"]


def test_answers_from_other_threads_wake_the_loop_once_for_many() -> None:
    engine, calls = Manual(), list[Any]()
    scheduler = Scheduler([engine])
    found: list[int] = []

    async def speak(number: int) -> None:
        (completion,) = await scheduler.complete([(engine, request(number))])
        found.append(completion.token_ids[0])

    def resolve() -> None:
        for number, future in engine.futures.items():
            future.set_result(answer(request(number)))

    async def block() -> None:
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args, **kwargs: (calls.append(args), original(*args, **kwargs))[1]  # type: ignore[assignment]
        await asyncio.sleep(0)
        thread = threading.Thread(target=resolve)
        thread.start()
        # the loop stands still until everything is resolved
        thread.join()

    run(scheduler, *(speak(number) for number in range(50)), block())
    assert sorted(found) == list(range(50))
    assert len(calls) == 1


def test_requests_of_one_step_are_under_way_at_the_same_time_and_come_back_in_order() -> None:
    engine = Manual()
    scheduler = Scheduler([engine])
    found: list[tuple[int, ...]] = []

    async def speak() -> None:
        completions = await scheduler.complete([(engine, request(number)) for number in (3, 1, 2)])
        found.extend(completion.token_ids for completion in completions)

    async def resolve() -> None:
        await asyncio.sleep(0)
        assert list(engine.futures) == [3, 1, 2]
        for number in (2, 3, 1):
            assert not found
            engine.futures[number].set_result(answer(request(number)))
            await asyncio.sleep(0)

    run(scheduler, speak(), resolve())
    assert found == [(3,), (1,), (2,)]


def test_the_failure_of_one_gives_up_what_was_asked_beside_it() -> None:
    engine = Manual()
    scheduler = Scheduler([engine])

    async def speak() -> None:
        with pytest.raises(RuntimeError, match="out of memory"):
            await scheduler.complete([(engine, request(number)) for number in (1, 2, 3)])

    async def fail() -> None:
        await asyncio.sleep(0)
        engine.futures[1].set_result(answer(request(1)))
        engine.futures[2].set_exception(RuntimeError("out of memory"))

    run(scheduler, speak(), fail())
    assert engine.futures[3].cancelled()


def test_an_overlong_prompt_is_refused_before_anything_is_asked() -> None:
    engine = Manual()
    scheduler = Scheduler([engine])

    async def speak() -> None:
        with pytest.raises(EngineError, match="leaves no room"):
            await scheduler.complete([(engine, request(1)), (engine, request(2, length=10))])

    run(scheduler, speak())
    assert not engine.futures


def test_a_request_that_the_engine_gives_up_is_an_engine_error() -> None:
    engine = Manual()
    scheduler = Scheduler([engine])

    async def speak() -> None:
        with pytest.raises(EngineError, match="the engine gave a request up before it was answered"):
            await scheduler.complete([(engine, request(1))])

    async def give_up() -> None:
        await asyncio.sleep(0)
        engine.futures[1].cancel()

    run(scheduler, speak(), give_up())


def test_what_is_under_way_is_given_up_when_one_coroutine_raises() -> None:
    engine = Manual()
    scheduler = Scheduler([engine])

    async def speak() -> None:
        await scheduler.complete([(engine, request(1))])

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("the search engine is down")

    with pytest.raises(LookupError, match="the search engine is down"):
        run(scheduler, speak(), fail())
    assert engine.futures[1].cancelled()


def test_of_several_that_fail_together_the_first_is_raised_and_none_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(number: int) -> None:
        raise EngineError(f"failure {number}")

    with pytest.raises(EngineError, match="failure 0"):
        asyncio.run(Scheduler([]).run([fail(number) for number in range(3)]))
    gc.collect()
    assert caplog.text == ""


def test_coroutines_that_are_ended_before_they_begin_are_not_reported() -> None:
    scheduler = Scheduler([Manual()])
    begun: list[int] = []

    async def speak(number: int) -> None:
        begun.append(number)

    async def main() -> None:
        async with scheduler.driving():
            for number in range(3):
                scheduler.spawn(speak(number))
            await scheduler.end()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()
    assert begun == []


def test_requests_join_and_leave_a_stepped_engine_between_steps() -> None:
    engine = SteppedEngine(answer, lambda asked: asked.prompt_ids[0])
    scheduler = Scheduler([engine])

    async def speak(*numbers: int) -> None:
        for number in numbers:
            await scheduler.complete([(engine, request(number))])

    run(scheduler, speak(1, 2), speak(3, 1))
    batches = [[asked.prompt_ids[0] for asked in batch] for batch in engine.batches]
    assert batches == [[1, 3], [3, 2], [3, 2], [1]]


def test_stepped_engines_begin_before_any_of_them_is_waited_for() -> None:
    diary: list[str] = []

    class Apart(SteppedEngine):
        def __init__(self, name: str) -> None:
            super().__init__(answer, lambda _: 1)
            self.name = name

        def begin_step(self) -> Callable[[], None]:
            finish = super().begin_step()
            diary.append(f"{self.name} begins")
            return lambda: (diary.append(f"{self.name} ends"), finish())[1]

    engines = [Apart("a"), Apart("b")]
    scheduler = Scheduler(engines)

    async def speak(number: int) -> None:
        await scheduler.complete([(engines[number], request(number))])

    run(scheduler, speak(0), speak(1))
    assert diary == ["a begins", "b begins", "a ends", "b ends"]


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_an_environment_step_takes_a_fixed_number_of_engine_steps(seconds: float) -> None:
    engine = SteppedEngine(answer, lambda asked: asked.prompt_ids[0])
    threads = EnvThreads(2)
    scheduler = Scheduler([engine], env_executor=threads, env_latency=3)

    async def search() -> None:
        await scheduler.complete([(engine, request(2))])
        assert await scheduler.environment(lambda: (time.sleep(seconds), "found")[1]) == "found"
        await scheduler.complete([(engine, request(1))])

    async def think() -> None:
        await scheduler.complete([(engine, request(9))])

    run(scheduler, search(), think())
    threads.shutdown()
    batches = [[asked.prompt_ids[0] for asked in batch] for batch in engine.batches]
    assert batches == [[2, 9], [2, 9], [9], [9], [9], [9, 1], [9], [9], [9]]


def test_an_environment_step_is_over_at_once_when_there_is_nothing_else_to_compute() -> None:
    engine = SteppedEngine(answer, lambda asked: 1)
    threads = EnvThreads(2)
    scheduler = Scheduler([engine], env_executor=threads, env_latency=1000)

    async def search(number: int) -> None:
        await scheduler.environment(lambda: time.sleep(0.01 * number))
        await scheduler.complete([(engine, request(number))])

    run(scheduler, search(2), search(1), search(0))
    threads.shutdown()
    assert [[asked.prompt_ids[0] for asked in batch] for batch in engine.batches] == [[0, 1, 2]]


def test_beside_an_engine_that_works_by_itself_an_environment_step_ends_when_it_ends() -> None:
    engine, slow = ThreadedEngine(answer, lambda _: 0.0), threading.Event()
    threads = EnvThreads(2)
    scheduler = Scheduler([engine], env_executor=threads)
    told: list[str] = []

    async def search(name: str, call: Callable[[], Any]) -> None:
        await scheduler.environment(call)
        await scheduler.complete([(engine, request(1))])
        told.append(name)
        slow.set()

    run(scheduler, search("slow", lambda: slow.wait(30)), search("fast", lambda: None))
    threads.shutdown()
    engine.close()
    assert told == ["fast", "slow"]


@pytest.mark.parametrize("engine", [Manual(), SteppedEngine(answer, lambda _: 1)], ids=["alone", "stepped"])
def test_an_environment_step_that_hangs_fails_alone_and_its_thread_is_replaced(engine: Engine) -> None:
    hangs = threading.Event()
    threads = EnvThreads(1)
    scheduler = Scheduler([engine], env_executor=threads, env_timeout=0.05)
    told: list[str] = []

    async def hang() -> None:
        with pytest.raises(
            EnvironmentFault, match=r"took longer than env_timeout=0.05 s; raise rollout.env_timeout"
        ):
            await scheduler.environment(lambda: hangs.wait(30))

    async def search() -> None:
        told.append(await scheduler.environment(lambda: "found"))

    started = time.perf_counter()
    run(scheduler, hang(), search())
    assert told == ["found"]
    assert time.perf_counter() - started < allowed(5)
    threads.shutdown()
    hangs.set()


def test_waiting_for_a_thread_is_no_part_of_the_time_limit() -> None:
    threads = EnvThreads(1)
    scheduler = Scheduler([Manual()], env_executor=threads, env_timeout=allowed(0.5))
    told: list[int] = []

    async def search(number: int) -> None:
        await scheduler.environment(lambda: time.sleep(0.1))
        told.append(number)

    run(scheduler, *(search(number) for number in range(10)))
    threads.shutdown()
    assert sorted(told) == list(range(10))


def test_a_stopped_loop_leaves_late_answers_alone() -> None:
    engine = Manual()
    scheduler = Scheduler([engine])

    async def speak() -> None:
        await scheduler.complete([(engine, request(1))])

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError

    engine.futures[1] = Future()
    for future in (Future[Completion](),):
        future.set_running_or_notify_cancel()
        engine.submit = lambda asked, future=future: future  # type: ignore[method-assign]
        with pytest.raises(LookupError):
            run(scheduler, speak(), fail())
        # it could not be given up any more, and is answered when nobody waits
        thread = threading.Thread(target=future.set_result, args=(answer(request(1)),))
        thread.start()
        thread.join()


def test_many_trajectories_on_two_stepped_engines_all_come_to_their_end() -> None:
    engines = [SteppedEngine(answer, lambda asked: 1 + asked.seed % 5) for _ in range(2)]
    threads = EnvThreads(4)
    scheduler = Scheduler(engines, env_executor=threads, env_latency=2)
    done: list[int] = []

    async def trajectory(number: int) -> None:
        for turn in range(3):
            engine = engines[(number + turn) % 2]
            await scheduler.complete([(engine, request(number + turn))])
            await scheduler.environment(lambda: None)
        done.append(number)

    run(scheduler, *(trajectory(number) for number in range(40)))
    threads.shutdown()
    assert sorted(done) == list(range(40))
    assert len(list(itertools.chain.from_iterable(engines[0].batches))) > 40


def test_environment_steps_of_one_trajectory_run_side_by_side_and_come_back_in_order() -> None:
    engine = SteppedEngine(answer, lambda _: 1)
    threads = EnvThreads(3)
    scheduler = Scheduler([engine], env_executor=threads, env_latency=2)
    both = threading.Barrier(3)
    found: list[Any] = []

    def step(number: int) -> int:
        both.wait(allowed(5))
        return number

    async def play() -> None:
        found.extend(await scheduler.gather([scheduler.environment(partial(step, n)) for n in range(3)]))
        await scheduler.complete([(engine, request(1))])
        found.append("spoken")

    run(scheduler, play())
    threads.shutdown()
    assert found == [0, 1, 2, "spoken"]


def test_the_first_fault_of_what_runs_side_by_side_is_raised_once_all_are_over() -> None:
    scheduler = Scheduler([SteppedEngine(answer, lambda _: 1)])
    over: list[str] = []

    async def step(name: str, fault: Exception | None) -> None:
        await asyncio.sleep(0)
        over.append(name)
        if fault is not None:
            raise fault

    async def play() -> None:
        steps = [step("a", None), step("b", KeyError("b")), step("c", ValueError("c")), step("d", None)]
        with pytest.raises(KeyError, match="b"):
            await scheduler.gather(steps)
        assert over == ["a", "b", "c", "d"]

    run(scheduler, play())


def test_what_runs_side_by_side_ends_with_the_collection() -> None:
    engine, ended = Manual(), list[str]()
    scheduler = Scheduler([engine])

    async def ask(number: int) -> None:
        try:
            await scheduler.complete([(engine, request(number))])
        finally:
            ended.append(f"ask {number}")

    async def fail() -> None:
        while len(engine.futures) < 2:
            await asyncio.sleep(0)
        raise EngineError("broken")

    async def play() -> None:
        await scheduler.gather([ask(1), ask(2)])

    with pytest.raises(EngineError, match="broken"):
        run(scheduler, play(), fail())
    assert sorted(ended) == ["ask 1", "ask 2"]
    assert all(future.cancelled() for future in engine.futures.values())
