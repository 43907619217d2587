"""The role that writes programs."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.coder_tester.grammars import ProgramGrammar
from drmas_pl.agents.coder_tester.templates import CODER, COMPACT_CODER
from drmas_pl.parsing import Grammar


class Coder(Agent):
    """Writes a program in a fenced block; sees earlier programs and how they did on the tester's tests."""

    grammar: ClassVar[Grammar] = ProgramGrammar()
    templates = {"full": CODER, "compact": COMPACT_CODER}
