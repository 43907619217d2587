"""Dense retrieval: passages are vectors in a FAISS index, a query finds the nearest (extra ``retrieval``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from drmas_pl.errors import ConfigError, RetrievalError
from drmas_pl.retrieval.base import Passage, Retriever
from drmas_pl.retrieval.corpus import Corpus, Entry
from drmas_pl.retrieval.encoder import TextEncoder
from drmas_pl.retrieval.index import IndexFolder

_FILE: Final = "index.faiss"
_CHUNK: Final = 4096
# What FAISS itself asks for: so many training vectors per cluster.
_PER_CLUSTER: Final = 64


class DenseRetriever(Retriever):
    """Ranks passages by the inner product of unit vectors; unlike word search it always finds something.

    Args:
        corpus: JSON-lines file of ``{"id", "contents"}``, or ``embedded:search/corpus``.
        index: Folder of the index; built there if missing, then memory-mapped.
        model: Folder or hub name of the encoder, for example ``intfloat/e5-base-v2``.
        factory: FAISS index factory: ``Flat`` is exact, ``IVF4096,PQ64`` small and approximate.
        nprobe: Clusters searched per query, for factories with clusters.
        query_prefix: See :class:`~drmas_pl.retrieval.encoder.TextEncoder`, as the next four.
        passage_prefix: Put before passages.
        max_length: Tokens of a text that are read.
        batch_size: Texts encoded at once.
        device: Torch device of the encoder.
        max_batch: Largest number of queries in one lookup.
        cache_size: See :class:`~drmas_pl.retrieval.base.Retriever`.

    Raises:
        ValueError: A number is out of range.
        ConfigError: faiss is missing, the encoder cannot be loaded or FAISS does not know ``factory``.
        DataError: The corpus is missing or damaged, or the index belongs to another corpus, encoder or factory.

    References:
        Douze et al., "The Faiss library", 2024, arXiv:2401.08281.
    """

    def __init__(
        self,
        corpus: str | Path,
        *,
        index: str | Path,
        model: str | Path,
        factory: str = "Flat",
        nprobe: int = 32,
        query_prefix: str = "query: ",
        passage_prefix: str = "passage: ",
        max_length: int = 256,
        batch_size: int = 64,
        device: str = "cpu",
        max_batch: int = 64,
        cache_size: int = 65536,
    ) -> None:
        super().__init__(cache_size=cache_size, max_batch=max_batch)
        if nprobe < 1:
            raise ValueError(f"nprobe must be at least 1 cluster, got {nprobe}")
        self._faiss = _import_faiss()
        self._corpus = Corpus(corpus)
        self.factory = factory
        self._encoder = TextEncoder(
            model,
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            max_length=max_length,
            batch_size=batch_size,
            device=device,
        )
        stored = f"faiss-{self._corpus.fingerprint()}-{self._encoder.fingerprint()}-{factory}"
        folder = IndexFolder(index)
        if folder.exists:
            folder.check(stored)
        else:
            with folder.writing(stored) as draft:
                self._faiss.write_index(self._build(), str(draft / _FILE))
        self._index = self._faiss.read_index(str(folder.path / _FILE), self._faiss.IO_FLAG_MMAP_IFC)
        clustered = hasattr(self._faiss.downcast_index(self._index), "nprobe")
        if clustered:
            self._faiss.ParameterSpace().set_index_parameter(self._index, "nprobe", nprobe)
        self._fingerprint = f"{stored}-nprobe={nprobe}" if clustered else stored

    @property
    def fingerprint(self) -> str:
        """Identify corpus, encoder and settings."""
        return self._fingerprint

    def __len__(self) -> int:
        return len(self._corpus)

    def lookup(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Encode the queries together and find the nearest passages of each."""
        try:
            scores, positions = self._index.search(self._encoder.queries(queries), min(k, len(self._corpus)))
        except RuntimeError as error:
            raise RetrievalError(f"dense search failed ({type(error).__name__})") from error
        # A clustered index fills up with -1 when the clusters it looked at hold too few.
        return [
            [
                Passage(*self._corpus[int(position)], score=float(score))
                for position, score in zip(*row)
                if position >= 0
            ]
            for row in zip(positions, scores)
        ]

    def close(self) -> None:
        """Unmap the corpus."""
        self._corpus.close()

    def _build(self) -> Any:
        try:
            index = self._faiss.index_factory(
                self._encoder.dimension, self.factory, self._faiss.METRIC_INNER_PRODUCT
            )
        except RuntimeError as error:
            raise ConfigError(
                f"FAISS does not know the factory {self.factory!r}; use Flat or, for example, IVF4096,PQ64"
            ) from error
        if not index.is_trained:
            index.train(self._sample(index))
        entries = iter(self._corpus)
        while chunk := list(islice(entries, _CHUNK)):
            index.add(self._encoder.passages([_text(entry) for entry in chunk]))
        return index

    def _sample(self, index: Any) -> np.ndarray:
        """Encode evenly spaced passages to train clusters with."""
        clusters = getattr(self._faiss.downcast_index(index), "nlist", 256)
        size = min(len(self._corpus), max(clusters, 256) * _PER_CLUSTER)
        chosen = np.linspace(0, len(self._corpus) - 1, size, dtype=np.int64)
        return self._encoder.passages([_text(self._corpus[int(position)]) for position in chosen])


def _text(entry: Entry) -> str:
    return f"{entry.title}\n{entry.text}" if entry.title else entry.text


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            f"retriever=dense needs faiss ({error}); pip install 'drmas_pl[retrieval]', or use retriever=bm25s"
        ) from error
    return faiss
