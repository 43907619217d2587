"""Find passages for a query: one contract, several backends."""

from drmas_pl.retrieval.base import Passage, Retriever
from drmas_pl.retrieval.bm25s import BM25sRetriever

__all__ = ["BM25sRetriever", "Passage", "Retriever"]
