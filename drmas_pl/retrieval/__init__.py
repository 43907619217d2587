"""Find passages for a query: one contract, several backends."""

from drmas_pl.retrieval.base import Passage, Retriever
from drmas_pl.retrieval.bm25s import BM25sRetriever
from drmas_pl.retrieval.checks import check_retriever
from drmas_pl.retrieval.http import HttpRetriever

__all__ = ["BM25sRetriever", "HttpRetriever", "Passage", "Retriever", "check_retriever"]
