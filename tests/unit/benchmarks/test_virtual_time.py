"""Virtual time: the clock jumps, servers take the time of their model, and schedules are those that can be worked out by hand."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from benchmarks.virtual_time import (
    Call,
    Server,
    VirtualEngine,
    VirtualEnvExecutor,
    VirtualSteppedEngine,
    free_running_seconds,
    lock_step_seconds,
    run_virtually,
)
from drmas_pl.types import GenerationRequest, SamplingParams

ONE = Server(capacity=1, step=1.0, per_sequence=0.0)
TWO = Server(capacity=2, step=1.0, per_sequence=0.5)


def request(tokens: int) -> GenerationRequest:
    return GenerationRequest((1,), SamplingParams(), seed=tokens)


async def finish(engine: VirtualEngine, *lengths: int) -> list[float]:
    """Submit everything at once and return when each was done."""
    loop = asyncio.get_running_loop()

    async def wait(tokens: int) -> float:
        completion = await asyncio.wrap_future(engine.submit(request(tokens)))
        assert len(completion.token_ids) == tokens
        return loop.time()

    return list(await asyncio.gather(*(wait(tokens) for tokens in lengths)))


def test_hours_pass_in_no_time() -> None:
    async def main() -> str:
        await asyncio.sleep(3600)
        return "done"

    started = time.perf_counter()
    assert run_virtually(main) == ("done", 3600.0)
    assert time.perf_counter() - started < 5


def test_waiting_for_nothing_is_an_error_instead_of_for_ever() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="somebody waits for ever"):
        run_virtually(main)


@pytest.mark.parametrize(
    ("server", "lengths", "expected"),
    [
        # one after the other
        (ONE, (2, 1), [2.0, 3.0]),
        # two at once take 2 s a step, and one alone 1.5 s
        (TWO, (1, 3), [2.0, 5.0]),
        # the third takes the place of the first
        (TWO, (1, 3, 1), [2.0, 5.5, 4.0]),
    ],
)
def test_a_server_takes_the_time_of_its_model(
    server: Server, lengths: tuple[int, ...], expected: list[float]
) -> None:
    engine = VirtualEngine(server, lambda asked: asked.seed)
    found, seconds = run_virtually(lambda: finish(engine, *lengths))
    assert found == expected and seconds == max(expected) == engine.busy_seconds


def test_an_engine_of_this_process_takes_the_same_time_when_it_is_stepped() -> None:
    async def main() -> list[float]:
        engine = VirtualSteppedEngine(TWO, lambda asked: asked.seed)
        futures = [engine.submit(request(tokens)) for tokens in (1, 3, 1)]
        ends: dict[int, float] = {}
        while not engine.idle:
            engine.step()
            for at, future in enumerate(futures):
                if future.done():
                    ends.setdefault(at, asyncio.get_running_loop().time())
        return [ends[at] for at in range(3)]

    assert run_virtually(main)[0] == [2.0, 5.5, 4.0]


def test_a_request_that_was_given_up_is_not_answered() -> None:
    async def main() -> None:
        engine = VirtualEngine(ONE, lambda asked: asked.seed)
        future = engine.submit(request(2))
        future.cancel()
        await asyncio.sleep(5)
        assert future.cancelled()

    run_virtually(main)


def test_environment_steps_take_virtual_seconds_at_the_same_time() -> None:
    async def main() -> None:
        executor = VirtualEnvExecutor(lambda: 0.2)
        futures = [executor.submit(lambda number=number: number) for number in range(3)]  # type: ignore[misc]
        assert [await asyncio.wrap_future(future) for future in futures] == [0, 1, 2]
        failed = executor.submit(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            failed.result()

    assert run_virtually(main)[1] == 0.2


@pytest.mark.parametrize(
    ("trajectories", "servers", "free", "lock"),
    [
        # a round of 3 and one of 3, against 4 for either
        ([[Call(0, 3), Call(0, 1)], [Call(0, 1), Call(0, 3)]], [Server(2, 1.0, 0.0)], 4.0, 6.0),
        # two servers at the same time, and then again
        ([[Call(0, 2), Call(1, 2)], [Call(1, 2), Call(0, 2)]], [ONE, ONE], 4.0, 4.0),
        # the pause of one is hidden behind the call of the other
        ([[Call(0, 1, 2.0), Call(0, 1)], [Call(0, 2)]], [ONE], 4.0, 6.0),
        ([], [ONE], 0.0, 0.0),
    ],
)
def test_schedules_worked_out_by_hand(
    trajectories: list[list[Call]], servers: list[Server], free: float, lock: float
) -> None:
    assert free_running_seconds(trajectories, servers) == free
    assert lock_step_seconds(trajectories, servers) == lock


@pytest.mark.parametrize("seed", range(20))
def test_one_server_is_never_idle_between_its_first_and_last_call_and_no_chain_is_cut_short(
    seed: int,
) -> None:
    rng = random.Random(seed)
    trajectories = [[Call(0, rng.randint(1, 5)) for _ in range(rng.randint(1, 4))] for _ in range(9)]
    server = Server(capacity=3, step=1.0, per_sequence=0.0)
    seconds = free_running_seconds(trajectories, [server])
    tokens = [sum(call.tokens for call in calls) for calls in trajectories]
    assert max(sum(tokens) / 3, max(tokens)) <= seconds <= sum(tokens) / 3 + max(tokens)
    assert seconds <= lock_step_seconds(trajectories, [server])
