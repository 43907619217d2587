"""The retriever contract: texts in, ranked passages out.

Environments hold a retriever by reference and share it between clones, so every backend must allow calls from several threads.
The base class checks arguments and remembers answers; a backend implements :meth:`Retriever.lookup` and never sees the cache.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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

    Raises:
        ValueError: ``cache_size`` is negative.
    """

    def __init__(self, *, cache_size: int = 65536) -> None:
        if cache_size < 0:
            raise ValueError(f"cache_size must be >= 0, got {cache_size}; use 0 to turn the cache off")
        self.cache_size = cache_size
        self._cache: OrderedDict[tuple[str, int], list[Passage]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identify corpus and settings: equal fingerprints give equal answers."""

    @abstractmethod
    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Answer ``queries`` without the cache; called from any thread.

        Raises:
            RetrievalError: The backend failed, which is not the same as finding nothing.
        """

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return for each query at most ``k`` passages, best first; none when nothing matches.

        Args:
            queries: Texts to look for; equal ones are looked up once.
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
        known = {query: self._recall(query, k) for query in queries}
        missing = [query for query, passages in known.items() if passages is None]
        if missing:
            for query, passages in zip(missing, self.lookup(missing, k), strict=True):
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
            if (query, k) in self._cache:
                self._cache.move_to_end((query, k))
            return self._cache.get((query, k))

    def _remember(self, query: str, k: int, passages: list[Passage]) -> None:
        with self._lock:
            self._cache[query, k] = passages
            if len(self._cache) > self.cache_size:
                self._cache.popitem(last=False)
