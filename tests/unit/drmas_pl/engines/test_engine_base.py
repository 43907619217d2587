"""The contract of engines: what is submitted is answered by the next step, failures stay with their requests."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest, SamplingParams


class Echo(Engine):
    """Answers with the prompt's first id and records what it was asked."""

    def __init__(self, error: Exception | None = None, drop: int = 0) -> None:
        self.batches: list[list[int]] = []
        self.error = error
        self.drop = drop

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        self.batches.append([request.prompt_ids[0] for request in requests])
        if self.error is not None:
            raise self.error
        return [Completion((request.prompt_ids[0],), (0.0,), "stop", 0) for request in requests[self.drop :]]


def request(number: int, order: int | None = None) -> GenerationRequest:
    return GenerationRequest((number,), SamplingParams(), seed=0, order=(number if order is None else order,))


def test_a_step_answers_everything_submitted_in_order() -> None:
    engine = Echo()
    assert engine.idle
    futures = [engine.submit(request(number, order=-number)) for number in (1, 3, 2)]
    assert not engine.idle
    engine.step()
    assert engine.idle
    assert [future.result().token_ids for future in futures] == [(1,), (3,), (2,)]
    assert engine.batches == [[3, 2, 1]]


def test_equal_orders_keep_the_order_of_arrival() -> None:
    engine = Echo()
    for number in (2, 1, 3):
        engine.submit(request(number, order=0))
    engine.step()
    assert engine.batches == [[2, 1, 3]]


def test_requests_that_were_given_up_are_not_generated() -> None:
    engine = Echo()
    given_up, kept = engine.submit(request(1)), engine.submit(request(2))
    given_up.cancel()
    engine.step()
    engine.step()
    assert engine.batches == [[2]]
    assert kept.done()


@pytest.mark.parametrize(
    ("engine", "error", "message"),
    [
        (Echo(error=RuntimeError("lost")), RuntimeError, "lost"),
        (Echo(drop=1), EngineError, "Echo returned 1 completions for 2 requests"),
    ],
    ids=["raises", "too-few"],
)
def test_a_failed_batch_fails_its_requests(engine: Echo, error: type[Exception], message: str) -> None:
    futures = [engine.submit(request(1)), engine.submit(request(2))]
    engine.step()
    for future in futures:
        with pytest.raises(error, match=message):
            future.result()


def test_an_engine_implements_one_of_both_ways() -> None:
    with pytest.raises(TypeError, match="Silent must implement generate, or submit and step"):
        type("Silent", (Engine,), {})


def test_an_unanswerable_prompt_fails_its_own_future() -> None:
    engine = Echo()
    engine.context_length = 3
    filled, fine = (
        engine.submit(GenerationRequest((1, 2, 3), SamplingParams(), seed=0)),
        engine.submit(request(4)),
    )
    empty = engine.submit(GenerationRequest((), SamplingParams(), seed=0))
    engine.step()
    assert fine.result().token_ids == (4,)
    for future, message in ((filled, "leaves no room in a context of 3"), (empty, "has an empty prompt")):
        with pytest.raises(EngineError, match=message):
            future.result()


class Remote(Engine):
    """Works by itself, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.futures: list[Future[Completion]] = []

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        self.asked.append(request.prompt_ids[0])
        future: Future[Completion] = Future()
        if request.prompt_ids[0] == 13:
            future.set_exception(EngineError("thirteen"))
        elif request.prompt_ids[0] < 100:
            future.set_result(Completion(request.prompt_ids, (0.0,), "stop", 0))
        self.futures.append(future)
        return future


def test_generate_submits_in_order_and_returns_in_the_order_of_its_argument() -> None:
    engine = Remote()
    found = engine.generate([request(1, order=3), request(2, order=1), request(3, order=1)])
    assert engine.asked == [2, 3, 1]
    assert [completion.token_ids for completion in found] == [(1,), (2,), (3,)]


def test_when_one_fails_nobody_waits_for_the_others() -> None:
    engine = Remote()
    with pytest.raises(EngineError, match="thirteen"):
        engine.generate([request(13), request(100)])
    assert engine.futures[1].cancelled()


def test_who_needs_steps_is_known() -> None:
    class Stepping(Remote):
        def step(self) -> None: ...

    assert Echo().needs_steps and Stepping().needs_steps and not Remote().needs_steps


def test_a_subclass_whose_generate_nobody_would_call_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"Shouting overrides generate, but rollouts ask TransformersEngine\.submit"
    ):

        class Shouting(TransformersEngine):
            def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
                return super().generate(requests)

    class Both(TransformersEngine):
        def submit(self, request: GenerationRequest) -> Future[Completion]:
            return super().submit(request)

        def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
            return super().generate(requests)

    class Heir(Both):
        """Adds nothing."""

    assert Heir.generate is Both.generate
