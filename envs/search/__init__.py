"""Questions that are answered with the help of a search engine."""

import gymnasium

from drmas_pl.envs.search.embedded import embedded_retriever, embedded_search
from drmas_pl.envs.search.env import SearchEnv

__all__ = ["SearchEnv", "embedded_retriever", "embedded_search"]

gymnasium.register("drmas/Search-v0", entry_point="drmas_pl.envs.search:embedded_search", disable_env_checker=True, order_enforce=False)
