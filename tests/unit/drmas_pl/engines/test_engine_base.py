"""The contract of engines: what is submitted is answered by the next step, failures stay with their requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drmas_pl.engines.base import Engine
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
