"""A team of one."""

from drmas_pl.agents.single.roles import SearchActor, SolutionActor, TextActor
from drmas_pl.agents.single.team import SingleTeam

__all__ = ["SearchActor", "SingleTeam", "SolutionActor", "TextActor"]
