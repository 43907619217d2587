"""The role that looks for what is missing."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.hierarchy import grammars, templates
from drmas_pl.parsing import Grammar


class Searcher(Agent):
    """Writes the next query: ``<search>query</search>``; sees the queries made so far and what they returned."""

    grammar: ClassVar[Grammar] = grammars.SEARCH
    templates = templates.SEARCH
