"""Coroutines that wait for a batch: order, isolation of failures, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from drmas_pl.engines.base import Engine
from drmas_pl.engines.request_batcher import RequestBatcher
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest, SamplingParams


class Echo(Engine):
    """Answers with the prompt's first id and records what it was asked."""

    context_length = 10

    def __init__(self, error: Exception | None = None, drop: int = 0) -> None:
        self.batches: list[list[int]] = []
        self.error, self.drop = error, drop

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        self.batches.append([request.prompt_ids[0] for request in requests])
        if self.error is not None:
            raise self.error
        return [Completion((request.prompt_ids[0],), (0.0,), "stop", 0) for request in requests[self.drop :]]


def request(number: int, order: int | None = None, length: int = 1) -> GenerationRequest:
    return GenerationRequest(
        (number,) * length, SamplingParams(), seed=0, order=(number if order is None else order,)
    )


def test_everything_pending_is_one_batch_sorted_by_order() -> None:
    async def play() -> list[int]:
        waiting = [
            asyncio.ensure_future(pending.submit(request(number, order=-number))) for number in (1, 3, 2)
        ]
        await asyncio.sleep(0)
        assert len(pending) == 3
        assert pending.flush() == 3
        assert len(pending) == 0
        return [(await future).token_ids[0] for future in waiting]

    engine = Echo()
    pending = RequestBatcher(engine)
    assert asyncio.run(play()) == [1, 3, 2]
    assert engine.batches == [[3, 2, 1]]


def test_equal_orders_keep_the_order_of_arrival() -> None:
    async def play() -> None:
        waiting = [asyncio.ensure_future(pending.submit(request(number, order=0))) for number in (2, 1, 3)]
        await asyncio.sleep(0)
        pending.flush()
        await asyncio.gather(*waiting)

    engine = Echo()
    pending = RequestBatcher(engine)
    asyncio.run(play())
    assert engine.batches == [[2, 1, 3]]


def test_flushing_nothing_does_not_disturb_the_engine() -> None:
    engine = Echo()
    assert RequestBatcher(engine).flush() == 0
    assert engine.batches == []


@pytest.mark.parametrize("error", [EngineError("asleep"), RuntimeError("out of memory")])
def test_a_failure_reaches_exactly_the_coroutines_of_the_batch(error: Exception) -> None:
    async def play() -> tuple[list[object], Completion]:
        failing = [asyncio.ensure_future(pending.submit(request(number))) for number in (1, 2)]
        await asyncio.sleep(0)
        pending.flush()
        later = asyncio.ensure_future(pending.submit(request(3)))
        results = await asyncio.gather(*failing, return_exceptions=True)
        engine.error = None
        pending.flush()
        return list(results), await later

    engine = Echo(error)
    pending = RequestBatcher(engine)
    results, survivor = asyncio.run(play())
    assert results == [error, error]
    assert survivor.token_ids == (3,)


def test_an_overlong_prompt_fails_alone() -> None:
    async def play() -> list[object]:
        waiting = [
            asyncio.ensure_future(pending.submit(request(number, length=length)))
            for number, length in ((1, 3), (2, 10))
        ]
        await asyncio.sleep(0)
        pending.flush()
        return list(await asyncio.gather(*waiting, return_exceptions=True))

    pending = RequestBatcher(Echo())
    good, bad = asyncio.run(play())
    assert isinstance(good, Completion)
    assert isinstance(bad, EngineError) and "leaves no room" in str(bad)


def test_a_cancelled_request_is_left_out() -> None:
    async def play() -> Completion:
        doomed, kept = (asyncio.ensure_future(pending.submit(request(number))) for number in (1, 2))
        await asyncio.sleep(0)
        doomed.cancel()
        await asyncio.sleep(0)
        assert pending.flush() == 1
        return await kept

    engine = Echo()
    pending = RequestBatcher(engine)
    assert asyncio.run(play()).token_ids == (2,)
    assert engine.batches == [[2]]


def test_an_engine_that_loses_a_completion_is_an_error_in_every_coroutine() -> None:
    async def play() -> list[object]:
        waiting = [asyncio.ensure_future(pending.submit(request(number))) for number in (1, 2)]
        await asyncio.sleep(0)
        pending.flush()
        return list(await asyncio.gather(*waiting, return_exceptions=True))

    pending = RequestBatcher(Echo(drop=1))
    results = asyncio.run(play())
    assert [str(result) for result in results] == ["Echo returned 1 completions for 2 requests"] * 2


class Apart(Echo):
    """Works while others do, and writes down what it does when."""

    def __init__(self, name: str, diary: list[str]) -> None:
        super().__init__()
        self.name, self.diary = name, diary

    def begin(self, requests: Sequence[GenerationRequest]) -> Callable[[], list[Completion]]:
        self.diary.append(f"{self.name} begins")
        return lambda: (self.diary.append(f"{self.name} ends"), self.generate(requests))[1]


def test_engines_on_devices_of_their_own_work_at_the_same_time() -> None:
    async def play() -> list[int]:
        waiting = [
            asyncio.ensure_future(queue.submit(request(number))) for number, queue in enumerate(queues)
        ]
        await asyncio.sleep(0)
        for finish in [queue.begin() for queue in queues]:
            assert finish() == 1
        return [(await future).token_ids[0] for future in waiting]

    diary: list[str] = []
    queues = [RequestBatcher(Apart(name, diary)) for name in "ab"]
    assert asyncio.run(play()) == [0, 1]
    assert diary == ["a begins", "b begins", "a ends", "b ends"]
