"""BM25 in pure Python and NumPy (library ``bm25s``): the default retriever, needs neither Java nor a server.

Scores of every (word, passage) pair are computed once; a query adds up a few rows. The index can be kept on disk, from where it
is memory-mapped; it then carries the fingerprint of corpus and settings and refuses to serve any other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from drmas_pl.errors import DataError
from drmas_pl.retrieval.base import Passage, Retriever
from drmas_pl.retrieval.corpus import Corpus

_WORD: Final = re.compile(r"\w+")
_STOPWORDS: Final = frozenset(STOPWORDS_EN)
_FINGERPRINT: Final = "fingerprint.json"
_OFFSETS: Final = "offsets.npy"


def words(text: str) -> list[str]:
    """Split a text into the case-folded words that are indexed; common English function words are left out.

    >>> words("The capital of Guinea-Bissau")
    ['capital', 'guinea', 'bissau']
    """
    return [word for word in _WORD.findall(text.casefold()) if word not in _STOPWORDS]


class BM25sRetriever(Retriever):
    """Ranks passages by BM25 over title and text; equal scores keep the order of the corpus.

    Args:
        corpus: JSON-lines file of ``{"id", "contents"}``, or ``embedded:search/corpus`` for the one that ships with the package.
        index: Folder to keep the index in: built there if missing, memory-mapped if present; None keeps it in memory.
        k1: Saturation of repeated words, at least 0; the defaults of both are those of the Anserini toolkit.
        b: Strength of the length normalisation, in [0, 1].
        cache_size: See :class:`~drmas_pl.retrieval.base.Retriever`.

    Raises:
        ValueError: ``k1`` or ``b`` is out of range.
        DataError: The corpus is missing or damaged, or the index belongs to another corpus or other settings.

    References:
        Lù, "BM25S: Orders of magnitude faster lexical search via eager sparse scoring", 2024, arXiv:2407.03618.
    """

    def __init__(
        self, corpus: str | Path, *, index: str | Path | None = None, k1: float = 0.9, b: float = 0.4, cache_size: int = 65536
    ) -> None:
        super().__init__(cache_size=cache_size)
        if k1 < 0 or not 0 <= b <= 1:
            raise ValueError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, got k1={k1}, b={b}; usual values are 0.9 and 0.4")
        self.k1, self.b = k1, b
        folder = None if index is None else Path(index)
        stored = folder is not None and (folder / _FINGERPRINT).is_file()
        offsets = np.load(folder / _OFFSETS, mmap_mode="r") if folder is not None and stored else None
        self._corpus = Corpus(corpus, offsets=offsets)
        self._fingerprint = f"bm25s-{self._corpus.fingerprint()}-k1={k1:g}-b={b:g}"
        if folder is not None and stored:
            self._model = self._load(folder)
        else:
            self._model = self._build()
            if folder is not None:
                self._save(folder)

    @property
    def fingerprint(self) -> str:
        """Identify corpus, backend and settings."""
        return self._fingerprint

    def __len__(self) -> int:
        return len(self._corpus)

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Rank the passages that share a word with each query."""
        return [self._rank(words(query), k) for query in queries]

    def close(self) -> None:
        """Unmap the corpus."""
        self._corpus.close()

    def _rank(self, query: list[str], k: int) -> list[Passage]:
        ids = self._model.get_tokens_ids(query)
        if not ids:
            return []
        scores = self._model.get_scores_from_ids(ids)
        found = _best(scores, k)
        return [Passage(*self._corpus[int(index)], score=float(scores[index])) for index in found]

    def _build(self) -> bm25s.BM25:
        model = bm25s.BM25(k1=self.k1, b=self.b, method="lucene")
        model.index([words(f"{entry.title} {entry.text}") for entry in self._corpus], show_progress=False)
        return model

    def _load(self, folder: Path) -> bm25s.BM25:
        stored = json.loads((folder / _FINGERPRINT).read_text(encoding="utf-8"))["fingerprint"]
        if stored != self._fingerprint:
            raise DataError(
                f"index {folder.name} was built for {stored}, but this corpus with these settings is {self._fingerprint}; delete it"
            )
        return bm25s.BM25.load(folder, mmap=True, show_progress=False, verbosity=0)

    def _save(self, folder: Path) -> None:
        """Write the index beside its final place and rename it, so that a half-written one is never served."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            self._model.save(draft, show_progress=False)
            np.save(draft / _OFFSETS, self._corpus.offsets)
            (draft / _FINGERPRINT).write_text(json.dumps({"fingerprint": self._fingerprint}), encoding="utf-8")
            os.replace(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the ``k`` largest positive scores, best first, ties in index order."""
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
        threshold = np.partition(scores[found], len(found) - k)[len(found) - k]
        found = found[scores[found] >= threshold]
    order = np.argsort(-scores[found], kind="stable")
    return found[order[:k]]
