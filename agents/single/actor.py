"""The lone agent, one class per protocol of :class:`~drmas_pl.agents.single.team.SingleTeam`."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.single.team import GRAMMARS
from drmas_pl.agents.single.templates import COMPACT_SOLUTION, SEARCH, SOLUTION, TEXT
from drmas_pl.parsing import Grammar


class SolutionActor(Agent):
    r"""Works a task out in one go and ends with ``\boxed{…}``."""

    grammar: ClassVar[Grammar] = GRAMMARS["solution"]
    templates = {"full": SOLUTION, "compact": COMPACT_SOLUTION}


class SearchActor(Agent):
    """Searches and answers on its own."""

    grammar: ClassVar[Grammar] = GRAMMARS["search"]
    templates = {"full": SEARCH}


class TextActor(Agent):
    """Says whatever the environment understands."""

    grammar: ClassVar[Grammar] = GRAMMARS["text"]
    templates = {"full": TEXT}
