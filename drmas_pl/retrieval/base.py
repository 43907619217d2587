"""The retriever contract: texts in, ranked passages out.

Environments hold a retriever by reference and share it between clones, so every backend must allow calls from several threads.
The base class checks arguments, remembers answers and gathers the queries of waiting threads; a backend implements
:meth:`Retriever.lookup` and sees neither.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachetools import LRUCache

from drmas_pl.retrieval.gathering import Gatherer

# Even with one word per character this stays below the 1024 words that Lucene takes; models can write queries without end.
LONGEST_QUERY: Final = 1000


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage found for a query.

    Attributes:
        id: Identifier within its corpus.
        title: Name of the article it comes from; may be empty.
        text: Its content, without the title.
        score: Relevance; only comparable within one query.
    """

    id: str
    title: str
    text: str
    score: float


class Retriever(ABC):
    """Finds the passages that match a query best.

    Args:
        cache_size: Number of (query, k) answers remembered; 0 turns the memory off.
        max_batch: Queries of how many waiting threads may share one lookup, which then is the only one at a time; None lets every
            thread look up for itself.

    Raises:
        ValueError: ``cache_size`` is negative, or ``max_batch`` below 1.
    """

    def __init__(self, *, cache_size: int = 65536, max_batch: int | None = None) -> None:
        if cache_size < 0:
            raise ValueError(f"cache_size must be >= 0, got {cache_size}; use 0 to turn the cache off")
        self.cache_size = cache_size
        self._find = self.lookup if max_batch is None else Gatherer(self.lookup, max_batch)
        self._cache: LRUCache[tuple[str, int], list[Passage]] = LRUCache(max(cache_size, 1))
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identify corpus and settings: equal fingerprints give equal answers."""

    @abstractmethod
    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Answer distinct ``queries`` without the cache; called from any thread, from one at a time with ``max_batch``.

        Raises:
            RetrievalError: The backend failed, which is not the same as finding nothing.
        """

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return for each query at most ``k`` passages, best first; none when nothing matches.

        Args:
            queries: Texts to look for, of which the first 1000 characters count; equal ones are looked up once.
            k: Largest number of passages per query, at least 1.

        Raises:
            TypeError: ``queries`` is one string instead of a sequence of them.
            ValueError: ``k`` is below 1.
            RetrievalError: The backend failed.
        """
        if isinstance(queries, str):
            raise TypeError("queries must be a sequence of strings, got one string; pass [query]")
        if k < 1:
            raise ValueError(f"k must be at least 1 passage, got {k}")
        queries = [query[:LONGEST_QUERY] for query in queries]
        known = {query: self._recall(query, k) for query in queries}
        missing = [query for query, passages in known.items() if passages is None]
        if missing:
            for query, passages in zip(missing, self._find(missing, k), strict=True):
                known[query] = passages
                self._remember(query, k, passages)
        return [list(known[query] or ()) for query in queries]

    @abstractmethod
    def close(self) -> None:
        """Release files and connections; the retriever cannot be used afterwards."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Retriever:
        """A retriever is shared, never copied."""
        return self

    def _recall(self, query: str, k: int) -> list[Passage] | None:
        with self._lock:
            return self._cache.get((query, k))

    def _remember(self, query: str, k: int, passages: list[Passage]) -> None:
        if self.cache_size:
            with self._lock:
                self._cache[query, k] = passages
