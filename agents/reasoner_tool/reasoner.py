"""The role that reasons."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.reasoner_tool.templates import COMPACT_REASONER, REASONER
from drmas_pl.parsing import BoxedGrammar, Grammar


class Reasoner(Agent):
    r"""Works the problem out and ends with ``\boxed{…}``; sees the rounds before."""

    grammar: ClassVar[Grammar] = BoxedGrammar()
    templates = {"full": REASONER, "compact": COMPACT_REASONER}
