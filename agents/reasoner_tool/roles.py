"""The roles of reasoner and programmer."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.coder_tester.roles import ProgramGrammar
from drmas_pl.agents.reasoner_tool import prompts
from drmas_pl.parsing import BoxedGrammar, Grammar


class Reasoner(Agent):
    r"""Works the problem out and ends with ``\boxed{…}``; sees the rounds before."""

    grammar: ClassVar[Grammar] = BoxedGrammar()
    templates = prompts.REASONER


class Programmer(Agent):
    """Writes a program that prints the answer; sees the rounds before, but not what the reasoner has just said."""

    grammar: ClassVar[Grammar] = ProgramGrammar()
    templates = prompts.PROGRAMMER
