"""The role that writes tests."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.coder_tester.grammars import TestsGrammar
from drmas_pl.agents.coder_tester.templates import COMPACT_TESTER, TESTER
from drmas_pl.parsing import Grammar


class Tester(Agent):
    """Writes tests as ``<tests>[{"input": …, "output": …}, …]</tests>``."""

    # pytest would collect a class of this name
    __test__ = False
    grammar: ClassVar[Grammar] = TestsGrammar()
    templates = {"full": TESTER, "compact": COMPACT_TESTER}
