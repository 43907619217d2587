"""BM25 of Lucene through pyserini: English stemming, an index on disk; needs Java (extra ``retrieval``).

The index holds positions in the corpus, texts come from the corpus itself. Java is called from one thread only: every thread that
calls it stays attached to it, and rollouts make new threads all the time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final

from drmas_pl.errors import ConfigError, RetrievalError
from drmas_pl.retrieval.base import Passage, Retriever
from drmas_pl.retrieval.corpus import Corpus
from drmas_pl.retrieval.index import IndexFolder
from drmas_pl.retrieval.java import prepare_java

_CHUNK: Final = 10_000


class LuceneRetriever(Retriever):
    """Ranks passages by Lucene's BM25 over title and text.

    Args:
        corpus: JSON-lines file of ``{"id", "contents"}``, or ``embedded:search/corpus``.
        index: Folder of the index; built there if missing.
        k1: Saturation of repeated words, at least 0.
        b: Strength of the length normalisation, in [0, 1].
        threads: Java threads that search, and that build.
        max_batch: Largest number of queries in one lookup.
        cache_size: See :class:`~drmas_pl.retrieval.base.Retriever`.

    Raises:
        ValueError: A number is out of range.
        ConfigError: pyserini or Java is missing.
        DataError: The corpus is missing or damaged, or the index belongs to another corpus.

    References:
        Lin et al., "Pyserini: A Python toolkit for reproducible information retrieval research with sparse and dense
        representations", SIGIR 2021, arXiv:2102.10073.
    """

    def __init__(
        self,
        corpus: str | Path,
        *,
        index: str | Path,
        k1: float = 0.9,
        b: float = 0.4,
        threads: int = 1,
        max_batch: int = 64,
        cache_size: int = 65536,
    ) -> None:
        super().__init__(cache_size=cache_size, max_batch=max_batch)
        if k1 < 0 or not 0 <= b <= 1 or threads < 1:
            raise ValueError(
                f"Lucene needs k1 >= 0, 0 <= b <= 1 and threads >= 1, got k1={k1}, b={b}, threads={threads}"
            )
        searcher, indexer = _import_pyserini()
        self._corpus = Corpus(corpus)
        self.threads = threads
        stored = f"lucene-{self._corpus.fingerprint()}"
        # Lucene applies k1 and b while it searches, so one index serves every setting.
        self._fingerprint = f"{stored}-k1={k1:g}-b={b:g}"
        folder = IndexFolder(index)
        if folder.exists:
            folder.check(stored)
        else:
            with folder.writing(stored) as draft:
                self._build(indexer, draft)
        self._java = ThreadPoolExecutor(1, thread_name_prefix="lucene")
        self._searcher = searcher(str(folder.path))
        self._searcher.set_bm25(k1, b)

    @property
    def fingerprint(self) -> str:
        """Identify corpus, backend and settings."""
        return self._fingerprint

    def __len__(self) -> int:
        return len(self._corpus)

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Rank the passages that share a stem with each query."""
        return self._java.submit(self._rank, list(queries), k).result()

    def close(self) -> None:
        """Close index and corpus."""
        self._java.shutdown()
        self._searcher.close()
        self._corpus.close()

    def _rank(self, queries: list[str], k: int) -> list[list[Passage]]:
        names = [str(number) for number in range(len(queries))]
        try:
            hits = self._searcher.batch_search(queries, names, k=k, threads=self.threads)
        except Exception as error:  # pyjnius wraps whatever Java throws
            raise RetrievalError(f"Lucene failed ({type(error).__name__})") from error
        return [[self._passage(hit) for hit in hits.get(name) or ()] for name in names]

    def _passage(self, hit: Any) -> Passage:
        return Passage(*self._corpus[int(hit.docid)], score=float(hit.score))

    def _build(self, indexer: Any, draft: Path) -> None:
        writer = indexer(str(draft), threads=self.threads)
        try:
            documents = self._documents()
            while chunk := list(islice(documents, _CHUNK)):
                writer.add_batch_raw(chunk)
        finally:
            writer.close()

    def _documents(self) -> Iterator[str]:
        for position, entry in enumerate(self._corpus):
            yield json.dumps({"id": str(position), "contents": f"{entry.title}\n{entry.text}"})


def _import_pyserini() -> tuple[Any, Any]:
    """Import what searches and what builds, and start Java."""
    prepare_java()
    # Importing the searchers builds a client for a paid service that is never called; it only wants some key to be there.
    os.environ.setdefault("OPENAI_API_KEY", "unused")
    try:
        from pyserini.index.lucene import LuceneIndexer
        from pyserini.search.lucene import LuceneSearcher
    except ImportError as error:
        raise ConfigError(
            f"retriever=lucene needs pyserini ({error}); pip install 'drmas_pl[retrieval]' or use retriever=bm25s"
        ) from error
    except Exception as error:  # pyjnius raises errors of its own when Java is too old or does not start
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"Java does not start Lucene ({reason}); it needs Java 21 or newer, or use retriever=bm25s"
        ) from error
    return LuceneSearcher, LuceneIndexer
