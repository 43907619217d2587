"""A coder who writes a program and a tester who writes tests for it."""

from drmas_pl.agents.coder_tester.coder import Coder
from drmas_pl.agents.coder_tester.team import CoderTesterTeam
from drmas_pl.agents.coder_tester.tester import Tester

__all__ = ["Coder", "CoderTesterTeam", "Tester"]
