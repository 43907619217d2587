"""The role that writes programs."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.coder_tester.grammars import ProgramGrammar
from drmas_pl.agents.reasoner_tool.templates import COMPACT_PROGRAMMER, PROGRAMMER
from drmas_pl.parsing import Grammar


class Programmer(Agent):
    """Writes a program that prints the answer; sees the rounds before, but not what the reasoner has just said."""

    grammar: ClassVar[Grammar] = ProgramGrammar()
    templates = {"full": PROGRAMMER, "compact": COMPACT_PROGRAMMER}
