"""Conformance suite for authors of retrievers: ``check_retriever(make_retriever(), queries)`` belongs into their own tests."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from drmas_pl.errors import CheckFailed
from drmas_pl.retrieval.base import Passage, Retriever

# What models do write: nothing, operators of query languages, novels, text from everywhere.
HARD_QUERIES: Final = (
    "",
    " \n\t ",
    '"(unclosed AND [* OR -?:^~\\/ !',
    "word " * 3000,
    " ".join(f"w{number}" for number in range(3000)),
    "語" * 3000,
    "né 🎲\u200b\u202e e\u0301 \x00 \ufffd",
    "http://127.0.0.1/?a=b&c=%20#d",
)
_TOLERANCE: Final = 1e-4


def check_retriever(retriever: Retriever, queries: Sequence[str], *, k: int = 3) -> None:
    """Check that a retriever keeps the contract of :class:`~drmas_pl.retrieval.base.Retriever`.

    Args:
        retriever: The retriever; it is not closed.
        queries: At least two distinct texts that find something.
        k: Largest number of passages per query, at least 2.

    Raises:
        CheckFailed: The contract is broken.
        ValueError: There are too few queries, or ``k`` is too small.
    """
    if len(set(queries)) < 2 or k < 2:
        raise ValueError(
            f"check_retriever needs two distinct queries and k of at least 2, got {list(queries)!r} and k={k}"
        )
    name = type(retriever).__name__
    _expect(
        isinstance(retriever.fingerprint, str) and bool(retriever.fingerprint),
        f"{name}.fingerprint must be a text that says something",
    )
    _expect(retriever.fingerprint == retriever.fingerprint, f"{name}.fingerprint must not change by itself")
    _expect(
        copy.deepcopy({"retriever": retriever})["retriever"] is retriever,
        f"a copy of what holds a {name} must hold the same one",
    )
    _expect(retriever.search([], k) == [], f"{name}.search of no queries must return an empty list")
    found = _check_answers(retriever, queries, k, name)
    _check_order(retriever, queries, found, k, name)
    for query in HARD_QUERIES:
        _check_passages(retriever.search([query], k)[0], k, f"{name}.search of {query[:20]!r}…")
    _check_threads(retriever, queries, found, k, name)


def _check_answers(retriever: Retriever, queries: Sequence[str], k: int, name: str) -> list[list[Passage]]:
    found = retriever.search(queries, k)
    _expect(
        len(found) == len(queries),
        f"{name}.search must return one list per query, got {len(found)} for {len(queries)}",
    )
    for query, passages in zip(queries, found):
        _expect(
            bool(passages),
            f"{name}.search found nothing for {query!r}; give check_retriever queries that find something",
        )
        _check_passages(passages, k, f"{name}.search of {query!r}")
    return found


def _check_passages(passages: Sequence[Passage], k: int, what: str) -> None:
    _expect(len(passages) <= k, f"{what} must find at most {k} passages, got {len(passages)}")
    for passage in passages:
        texts = (passage.id, passage.title, passage.text)
        _expect(
            all(isinstance(text, str) for text in texts),
            f"{what}: id, title and text must be texts, got {texts!r}",
        )
        _expect(
            isinstance(passage.score, float) and math.isfinite(passage.score),
            f"{what}: a score must be finite, got {passage.score!r}",
        )
    scores = [passage.score for passage in passages]
    _expect(scores == sorted(scores, reverse=True), f"{what} must give the best first, got scores {scores}")


def _check_order(
    retriever: Retriever, queries: Sequence[str], found: list[list[Passage]], k: int, name: str
) -> None:
    again = retriever.lookup(list(dict.fromkeys(reversed(queries))), k)
    known = dict(zip(queries, found))
    for query, passages in zip(dict.fromkeys(reversed(queries)), again):
        _expect(
            _same(passages, known[query]),
            f"{name}.lookup must not depend on the order of queries; {query!r} found something else",
        )
    first = retriever.search(queries[:1], 1)[0]
    _expect(_same(first, found[0][:1]), f"{name}.search with k=1 must find the first of what k={k} finds")


def _check_threads(
    retriever: Retriever, queries: Sequence[str], found: list[list[Passage]], k: int, name: str
) -> None:
    asked = [index % len(queries) for index in range(32)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda index: retriever.lookup([queries[index]], k)[0], asked))
    for index, passages in zip(asked, answers):
        _expect(
            _same(passages, found[index]),
            f"{name}.lookup from several threads must answer {queries[index]!r} as from one",
        )


def _same(first: Sequence[Passage], second: Sequence[Passage]) -> bool:
    """Compare passages; scores may differ by what a batch's composition does to a sum."""
    return [(p.id, p.title, p.text) for p in first] == [(p.id, p.title, p.text) for p in second] and all(
        math.isclose(a.score, b.score, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) for a, b in zip(first, second)
    )


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailed(message)
