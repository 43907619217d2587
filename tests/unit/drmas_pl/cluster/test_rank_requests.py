"""What a rank does with the driver's requests: answers under their numbers, errors that travel, bounded steps."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from drmas_pl.cluster.rank_requests import RankRequests, as_picklable
from drmas_pl.engines.base import Engine
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.engines.sglang.client import RequestRefused
from drmas_pl.errors import EngineError
from drmas_pl.testing import tiny_tokenizer
from drmas_pl.types import Completion, GenerationRequest, SamplingParams


def request(*ids: int) -> GenerationRequest:
    return GenerationRequest(ids, SamplingParams(max_new_tokens=4), seed=0)


class Countdown(Engine):
    """Answers a request after as many steps as its first id says."""

    def __init__(self) -> None:
        self.open: list[tuple[int, Future[Completion]]] = []
        self.steps = 0

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        if not request.prompt_ids:
            raise EngineError("asleep")
        future: Future[Completion] = Future()
        self.open.append((request.prompt_ids[0], future))
        return future

    @property
    def idle(self) -> bool:
        return not self.open

    def step(self) -> None:
        self.steps += 1
        left = [(count - 1, future) for count, future in self.open if not future.cancelled()]
        for count, future in left:
            if count == 0:
                future.set_result(Completion((self.steps,), (0.0,), "stop", 0))
        self.open = [(count, future) for count, future in left if count]


def test_answers_come_under_their_numbers_as_soon_as_they_are_there() -> None:
    engine = Countdown()
    requests = RankRequests(engine)
    requests.submit([(7, request(5)), (8, request(1)), (9, request(2))])
    requests.step(3)
    assert [(number, found.token_ids) for number, found in requests.collect()] == [(8, (1,)), (9, (2,))]  # type: ignore[union-attr]
    requests.step(100)
    assert [number for number, _ in requests.collect()] == [7]
    assert engine.steps == 5
    assert requests.collect() == []


def test_a_request_that_the_engine_refuses_or_fails_is_answered_with_the_error() -> None:
    requests = RankRequests(Countdown())
    requests.submit([(1, request()), (2, request(1))])
    requests.step(1)
    found = dict(requests.collect())
    assert isinstance(found[1], EngineError) and str(found[1]) == "asleep"
    assert isinstance(found[2], Completion)
    requests = RankRequests(ScriptedEngine({"x": "never"}, tiny_tokenizer()))
    requests.submit([(3, request(5))])
    requests.step(1)
    ((number, error),) = requests.collect()
    assert number == 3 and "no key of the script" in str(error)


def test_what_was_given_up_is_not_answered() -> None:
    engine = Countdown()
    requests = RankRequests(engine)
    requests.submit([(1, request(2)), (2, request(2))])
    requests.step(1)
    requests.cancel([1, 99])
    requests.step(5)
    assert [number for number, _ in requests.collect()] == [2]
    requests.cancel([2])
    assert requests.collect() == []


def test_it_waits_for_the_first_answer_and_no_longer() -> None:
    engine = Countdown()
    requests = RankRequests(engine)
    requests.submit([(1, request(1))])
    start = time.monotonic()
    assert requests.collect(0.05) == []
    assert time.monotonic() - start >= 0.05
    threading.Timer(0.05, engine.step).start()
    assert [number for number, _ in requests.collect(20.0)] == [1]


class Odd(Exception):
    """Cannot be made again from its words."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (EngineError("no"), EngineError, "no"),
        (Odd(1, 2), EngineError, "Odd: 1 and 2"),
        (RequestRefused(400, "too long"), EngineError, "RequestRefused: too long"),
        (KeyboardInterrupt(), EngineError, "KeyboardInterrupt: "),
    ],
)
def test_errors_survive_the_way_to_the_driver(
    error: BaseException, kind: type[Exception], words: str
) -> None:
    found = as_picklable(error)
    assert type(found) is kind and str(found) == words
