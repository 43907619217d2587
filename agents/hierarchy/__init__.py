"""A verifier over a searcher and an answerer, for questions that need a search engine."""

from drmas_pl.agents.hierarchy.roles import Answerer, Searcher, Verifier
from drmas_pl.agents.hierarchy.team import HierarchyTeam

__all__ = ["Answerer", "HierarchyTeam", "Searcher", "Verifier"]
