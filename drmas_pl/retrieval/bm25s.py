"""BM25 in pure Python and NumPy (library ``bm25s``): the default retriever, needs neither Java nor a server.

Scores of every (word, passage) pair are computed once; a query adds up a few rows. The index can be kept on disk, from where it
is memory-mapped; it then carries the fingerprint of corpus and settings and refuses to serve any other.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from bm25s.tokenization import Tokenized

from drmas_pl.errors import DataError
from drmas_pl.retrieval.base import Passage, Retriever
from drmas_pl.retrieval.corpus import Corpus
from drmas_pl.retrieval.index import IndexFolder

_STOPWORDS: Final = frozenset(STOPWORDS_EN)
_OFFSETS: Final = "offsets.npy"
_BLOCK: Final = 512
# Han, Hiragana, Katakana, Bopomofo, Thai, Lao, Khmer, Myanmar: written without spaces between words.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)


def _marks() -> str:
    """Return the combining marks as ranges of a character class; Python's word characters lack them, Hindi and Thai words do not."""
    marks = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    runs = (list(run) for _, run in itertools.groupby(enumerate(marks), key=lambda pair: pair[1] - pair[0]))
    return "".join(f"{chr(run[0][1])}-{chr(run[-1][1])}" for run in runs)


_WORD: Final = re.compile(rf"[\w{_marks()}]+")
_UNSPACED_RUN: Final = re.compile(rf"([{_UNSPACED}]+)")


def words(text: str) -> list[str]:
    """Split a text into the terms that are indexed.

    Text is brought to Unicode's form NFKC and case-folded, so that composed and decomposed accents, and full-width letters, are found
    alike. Common English function words are left out. Scripts without spaces between words are cut into single characters and pairs.

    >>> words("The capital of Guinea-Bissau")
    ['capital', 'guinea', 'bissau']
    >>> words("北京大学")
    ['北', '北京', '京', '京大', '大', '大学', '学']
    """
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return [term for word in _WORD.findall(plain) if word not in _STOPWORDS for term in _terms(word)]


def _terms(word: str) -> Iterator[str]:
    """Yield a word, and for scripts without spaces each character and each pair of neighbours."""
    if word.isascii():
        yield word
        return
    for part in filter(None, _UNSPACED_RUN.split(word)):
        if not _UNSPACED_RUN.fullmatch(part):
            yield part
            continue
        for left, right in itertools.zip_longest(part, part[1:]):
            yield left
            if right is not None:
                yield left + right


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
        self,
        corpus: str | Path,
        *,
        index: str | Path | None = None,
        k1: float = 0.9,
        b: float = 0.4,
        cache_size: int = 65536,
    ) -> None:
        super().__init__(cache_size=cache_size)
        if k1 < 0 or not 0 <= b <= 1:
            raise ValueError(
                f"BM25 needs k1 >= 0 and 0 <= b <= 1, got k1={k1}, b={b}; usual values are 0.9 and 0.4"
            )
        self.k1 = k1
        self.b = b
        folder = None if index is None else IndexFolder(index)
        stored = folder is not None and folder.exists
        offsets = np.load(folder.path / _OFFSETS, mmap_mode="r") if folder is not None and stored else None
        self._corpus = Corpus(corpus, offsets=offsets)
        self._fingerprint = f"bm25s-2-{self._corpus.fingerprint()}-k1={k1:g}-b={b:g}"
        if folder is None:
            self._model = self._build()
            return
        if stored:
            folder.check(self._fingerprint)
        else:
            with folder.writing(self._fingerprint) as draft:
                self._build().save(draft, show_progress=False)
                np.save(draft / _OFFSETS, self._corpus.offsets)
        self._model = bm25s.BM25.load(folder.path, mmap=True, show_progress=False, verbosity=0)

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
        """Number the words in order of appearance, four bytes each; lists of strings would need ten times the memory."""
        numbers: dict[str, int] = {}
        texts = [
            array(
                "i", (numbers.setdefault(word, len(numbers)) for word in words(f"{entry.title} {entry.text}"))
            )
            for entry in self._corpus
        ]
        if not numbers:
            raise DataError(f"corpus {self._corpus.path.name} holds no words to search for")
        model = bm25s.BM25(k1=self.k1, b=self.b, method="lucene")
        model.index(Tokenized(ids=texts, vocab=numbers), show_progress=False)
        return model


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the ``k`` largest positive scores, best first, ties in index order.

    The k-th largest maximum of a block is no larger than the k-th largest score, which leaves few of millions to look at.
    """
    blocks = scores[: len(scores) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).max(axis=1)
    bound = np.partition(blocks, len(blocks) - k)[len(blocks) - k] if len(blocks) >= k else 0.0
    found = np.flatnonzero(scores >= bound) if bound > 0 else np.flatnonzero(scores > 0)
    if len(found) > k:
        threshold = np.partition(scores[found], len(found) - k)[len(found) - k]
        found = found[scores[found] >= threshold]
    order = np.argsort(-scores[found], kind="stable")
    return found[order[:k]]
