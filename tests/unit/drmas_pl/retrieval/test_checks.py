"""The conformance suite passes what keeps the contract and names what does not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.errors import CheckFailed
from drmas_pl.retrieval import BM25sRetriever, HttpRetriever, Passage, Retriever, check_retriever
from tests.helpers.search_server import SearchServer

QUERIES = ["France capital", "Lyon city", "Kenya internet domain", "Paris"]


class Shelf(Retriever):
    """Finds numbered passages; a fault changes them."""

    fingerprint = "shelf"

    def __init__(self, fault: Callable[[str, list[Passage]], Any] = lambda query, passages: passages) -> None:
        super().__init__(cache_size=0)
        self.fault = fault

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [
            self.fault(query, [Passage(f"{query}{i}", "", query, float(-i)) for i in range(k)])
            for query in queries
        ]

    def close(self) -> None:
        """Nothing is open."""


def test_the_default_retriever_keeps_the_contract() -> None:
    check_retriever(BM25sRetriever("embedded:search/corpus"), QUERIES)


def test_the_http_client_keeps_the_contract() -> None:
    with SearchServer() as server:
        check_retriever(HttpRetriever(server.url, max_batch=4), QUERIES)
        check_retriever(HttpRetriever(server.url, request_form="query"), QUERIES)


def test_a_plain_retriever_keeps_the_contract() -> None:
    check_retriever(Shelf(), QUERIES)


def one_more(query: str, passages: list[Passage]) -> list[Passage]:
    return [*passages, Passage("x", "", "", -99.0)]


class Forgetful:
    """Answers differently in other threads."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def __call__(self, query: str, passages: list[Passage]) -> list[Passage]:
        return passages if threading.get_ident() == self.thread else passages[:1]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda query, passages: [], "found nothing for"),
        (one_more, "at most 3 passages, got 4"),
        (lambda query, passages: passages[::-1], "best first"),
        (lambda query, passages: [Passage(1, "", "", 1.0)], "must be texts"),  # type: ignore[arg-type]
        (lambda query, passages: [Passage("1", "", "", float("nan"))], "finite"),
        (lambda query, passages: passages[: max(len(passages) - 2, 0)], "k=1"),
        (Forgetful(), "several threads"),
    ],
)
def test_a_broken_contract_is_named(fault: Any, message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        check_retriever(Shelf(fault), QUERIES)


def test_a_changing_fingerprint_is_named() -> None:
    numbers = count()

    class Changing(Shelf):
        @property
        def fingerprint(self) -> str:  # type: ignore[override]
            return str(next(numbers))

    with pytest.raises(CheckFailed, match="must not change"):
        check_retriever(Changing(), QUERIES)


def test_the_example_of_the_documentation_keeps_the_contract() -> None:
    page = Path(__file__).parents[4] / "docs" / "retrieval.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(code, str(page), "exec"), {})


def test_needs_something_to_ask() -> None:
    with pytest.raises(ValueError, match="two distinct queries"):
        check_retriever(Shelf(), ["a", "a"])
