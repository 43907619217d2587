"""Questions that are answered with the help of a search engine."""

from drmas_pl.envs.search.embedded import embedded_retriever, embedded_search
from drmas_pl.envs.search.env import SearchEnv

__all__ = ["SearchEnv", "embedded_retriever", "embedded_search"]
