"""The retriever contract: arguments, cache, sharing."""

import copy
import threading
from collections.abc import Sequence

import pytest

from drmas_pl.retrieval import Passage, Retriever


class Echo(Retriever):
    """Finds the query itself and remembers what it was asked."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings)
        self.asked: list[list[str]] = []

    @property
    def fingerprint(self) -> str:
        return "echo"

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.asked.append(list(queries))
        return [[Passage(query, "", query, 1.0)] * k for query in queries]

    def close(self) -> None:
        self.asked.clear()


def texts(found: list[list[Passage]]) -> list[list[str]]:
    return [[passage.text for passage in passages] for passages in found]


def test_answers_keep_the_order_of_queries() -> None:
    assert texts(Echo().search(["b", "a", "b"], 2)) == [["b", "b"], ["a", "a"], ["b", "b"]]


def test_a_query_is_looked_up_once_per_k() -> None:
    retriever = Echo()
    retriever.search(["a", "a", "b"], 1)
    retriever.search(["a", "c"], 1)
    retriever.search(["a"], 2)
    assert retriever.asked == [["a", "b"], ["c"], ["a"]]


def test_cache_forgets_the_least_recently_used() -> None:
    retriever = Echo(cache_size=2)
    for query in ("a", "b", "a", "c", "a", "b"):
        retriever.search([query], 1)
    assert retriever.asked == [["a"], ["b"], ["c"], ["b"]]


def test_cache_of_size_zero_is_off() -> None:
    retriever = Echo(cache_size=0)
    retriever.search(["a"], 1)
    retriever.search(["a"], 1)
    assert len(retriever.asked) == 2


def test_callers_cannot_change_what_is_remembered() -> None:
    retriever = Echo()
    retriever.search(["a"], 1)[0].clear()
    assert texts(retriever.search(["a"], 1)) == [["a"]]


def test_a_retriever_is_shared_by_copies_of_its_owner() -> None:
    owner = {"retriever": Echo()}
    assert copy.deepcopy(owner)["retriever"] is owner["retriever"]


def test_threads_may_search_at_the_same_time() -> None:
    retriever = Echo(cache_size=8)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for step in range(300):
            query = str((seed * 7 + step) % 20)
            if texts(retriever.search([query], 1)) != [[query]]:
                wrong.append(query)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_lookups_are_bounded_and_repeated_queries_asked_once() -> None:
    retriever = Echo(max_batch=2)
    assert texts(retriever.search(["a", "b", "a", "c"], 1)) == [["a"], ["b"], ["a"], ["c"]]
    assert retriever.asked == [["a", "b"], ["c"]]


def test_only_the_first_thousand_characters_of_a_query_count() -> None:
    retriever = Echo()
    retriever.search(["x" * 1000 + "y", "x" * 1000 + "z"], 1)
    assert retriever.asked == [["x" * 1000]]


def test_no_queries_need_no_lookup() -> None:
    retriever = Echo(max_batch=2)
    assert retriever.search([], 3) == [] and retriever.asked == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Echo(max_batch=0), ValueError, "max_batch must be at least 1"),
        (lambda: Echo(cache_size=-1), ValueError, "cache_size must be >= 0, got -1"),
        (lambda: Echo().search("a", 1), TypeError, "pass \\[query\\]"),
        (lambda: Echo().search(["a"], 0), ValueError, "k must be at least 1 passage, got 0"),
    ],
)
def test_wrong_arguments_are_named(call, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call()
