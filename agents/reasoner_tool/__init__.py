"""One agent reasons, another one writes a program for the same problem."""

from drmas_pl.agents.reasoner_tool.roles import Programmer, Reasoner
from drmas_pl.agents.reasoner_tool.team import ReasonerToolTeam

__all__ = ["Programmer", "Reasoner", "ReasonerToolTeam"]
