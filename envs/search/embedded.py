"""The search task that ships with the package: geography questions over one-fact passages."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.search.env import SearchEnv
from drmas_pl.retrieval import BM25sRetriever


@lru_cache(maxsize=1)
def embedded_retriever() -> BM25sRetriever:
    """Return the one BM25 index over the shipped passages; every environment of the process shares it."""
    return BM25sRetriever("embedded:search/corpus")


def embedded_search(*, split: str = "train", top_k: int = 2, **settings: Any) -> SearchEnv:
    """Build the environment over shipped passages and questions.

    Args:
        split: ``train``, ``validation`` or ``test``; tasks to draw from when ``reset`` is given none.
        top_k: Passages per search; two is what the shipped model learnt with.
        **settings: Further arguments of :class:`SearchEnv`.

    >>> env = embedded_search()
    >>> question, _ = env.reset(seed=0)
    >>> env.step("<search>France capital</search>")[0].split("\\n")[0]
    '<information>France: Its capital city is Paris.'
    """
    return SearchEnv(embedded_retriever(), read_tasks(f"embedded:search/{split}"), top_k=top_k, **settings)
