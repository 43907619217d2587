"""The roles of the search hierarchy."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.hierarchy import prompts
from drmas_pl.parsing import ActionGrammar, Grammar, VerdictGrammar


class Verifier(Agent):
    """Judges whether the information so far answers the question: ``<verify>yes</verify>`` or ``<verify>no</verify>``."""

    grammar: ClassVar[Grammar] = VerdictGrammar("verify", ("yes", "no"), keep="all")
    templates = prompts.VERIFIER


class Searcher(Agent):
    """Writes the next query: ``<search>query</search>``; sees the queries made so far and what they returned."""

    grammar: ClassVar[Grammar] = ActionGrammar("search")
    templates = prompts.SEARCH


class Answerer(Agent):
    """Writes the final answer alone: ``<answer>answer</answer>``."""

    grammar: ClassVar[Grammar] = ActionGrammar("answer")
    templates = prompts.ANSWER
