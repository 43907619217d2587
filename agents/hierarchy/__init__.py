"""A verifier over a searcher and an answerer, for questions that need a search engine."""

from drmas_pl.agents.hierarchy.answer import Answerer
from drmas_pl.agents.hierarchy.search import Searcher
from drmas_pl.agents.hierarchy.team import HierarchyTeam
from drmas_pl.agents.hierarchy.verifier import Verifier

__all__ = ["Answerer", "HierarchyTeam", "Searcher", "Verifier"]
