"""A coder who writes a program and a tester who writes tests for it."""

from drmas_pl.agents.coder_tester.cross import CrossExecutionTeam
from drmas_pl.agents.coder_tester.roles import Coder, Tester
from drmas_pl.agents.coder_tester.team import CoderTesterTeam

__all__ = ["Coder", "CoderTesterTeam", "CrossExecutionTeam", "Tester"]
