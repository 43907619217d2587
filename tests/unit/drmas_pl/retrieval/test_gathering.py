"""Queries of waiting threads become one lookup; failures stay with those who caused them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from drmas_pl.errors import RetrievalError, RetrieverUnavailable
from drmas_pl.retrieval.gathering import Gatherer


class Gate:
    """A lookup that answers in capitals, keeps what it was asked, and stands still in the first call until ``open`` is set."""

    def __init__(self, fault: Callable[[Sequence[str]], None] = lambda queries: None) -> None:
        self.asked: list[tuple[list[str], int]] = []
        self.entered, self.open = threading.Event(), threading.Event()
        self.fault = fault

    def __call__(self, queries: Sequence[str], k: int) -> list[str]:
        self.asked.append((list(queries), k))
        if len(self.asked) == 1:
            self.entered.set()
            assert self.open.wait(10)
        self.fault(queries)
        return [query.upper() for query in queries]


def crowd(gate: Gate, calls: Sequence[tuple[list[str], int]], max_batch: int = 64) -> list[Future[Any]]:
    """Let one caller stand in the gate, queue the others behind it in order, then open."""
    gather = Gatherer(gate, max_batch, window=0.0)
    with ThreadPoolExecutor(len(calls) + 1) as pool:
        first = pool.submit(gather, ["first"], 1)
        assert gate.entered.wait(10)
        futures = []
        for number, call in enumerate(calls, start=1):
            futures.append(pool.submit(gather, *call))
            while len(gather._queue) < number:
                threading.Event().wait(0.001)
        gate.open.set()
    return [first, *futures]


def test_those_who_wait_share_one_lookup_in_their_order() -> None:
    gate = Gate()
    futures = crowd(gate, [(["a"], 2), (["b", "c"], 2), (["a"], 2)])
    assert gate.asked == [(["first"], 1), (["a", "b", "c"], 2)]
    assert [future.result() for future in futures] == [["FIRST"], ["A"], ["B", "C"], ["A"]]


def test_another_k_is_another_lookup() -> None:
    gate = Gate()
    crowd(gate, [(["a"], 2), (["b"], 3), (["c"], 3)])
    assert gate.asked[1:] == [(["a"], 2), (["b", "c"], 3)]


def test_no_lookup_is_larger_than_allowed() -> None:
    gate = Gate()
    crowd(gate, [(["a", "b"], 1), (["c"], 1), (["d", "e"], 1), (["f"], 1)], max_batch=3)
    assert [queries for queries, _ in gate.asked[1:]] == [["a", "b", "c"], ["d", "e", "f"]]


def test_a_long_call_is_cut_into_pieces() -> None:
    asked: list[list[str]] = []
    gather = Gatherer(lambda queries, k: asked.append(list(queries)) or list(queries), 2)
    assert gather(["a", "b", "c", "d", "e"], 1) == ["a", "b", "c", "d", "e"]
    assert asked == [["a", "b"], ["c", "d"], ["e"]]


def test_a_query_the_backend_cannot_take_fails_alone() -> None:
    def fault(queries: Sequence[str]) -> None:
        if "poison" in queries:
            raise RetrievalError("too hard")

    gate = Gate(fault)
    names = ["a", "b", "poison", "c", "d", "e"]
    futures = crowd(gate, [([name], 1) for name in names])
    for name, future in zip(names, futures[1:]):
        if name == "poison":
            with pytest.raises(RetrievalError, match="too hard"):
                future.result()
        else:
            assert future.result() == [name.upper()]
    assert len(gate.asked) <= 1 + 2 * len(names) - 1


def test_no_answer_at_all_fails_everybody_after_one_lookup() -> None:
    def fault(queries: Sequence[str]) -> None:
        if queries != ["first"]:
            raise RetrieverUnavailable("down")

    gate = Gate(fault)
    futures = crowd(gate, [(["a"], 1), (["b"], 1), (["c"], 1)])
    assert futures[0].result() == ["FIRST"]
    for future in futures[1:]:
        with pytest.raises(RetrieverUnavailable, match="down"):
            future.result()
    assert len(gate.asked) == 2


@pytest.mark.parametrize("error", [TypeError("a bug"), KeyboardInterrupt()])
def test_whatever_is_raised_nobody_waits_for_ever(error: BaseException) -> None:
    def fault(queries: Sequence[str]) -> None:
        if queries != ["first"]:
            raise error

    futures = crowd(Gate(fault), [(["a"], 1), (["b"], 1)])
    for future in futures[1:]:
        assert type(future.exception()) is type(error)


def test_a_lookup_with_too_few_answers_is_a_bug() -> None:
    with pytest.raises(ValueError, match="is shorter than"):
        Gatherer(lambda queries, k: [], 4)(["a"], 1)


def test_only_company_makes_a_lookup_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("drmas_pl.retrieval.gathering.time.sleep", waits.append)
    gather = Gatherer(lambda queries, k: list(queries), 8, window=0.5)
    for query in "abc":
        gather([query], 1)
    assert waits == []
    gather._shared = True
    gather(["d"], 1)
    gather(["e"], 1)
    assert waits == [0.5]


@pytest.mark.parametrize(
    ("settings", "message"), [({"max_batch": 0}, "max_batch"), ({"max_batch": 1, "window": -1.0}, "window")]
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gatherer(lambda queries, k: [], **settings)
