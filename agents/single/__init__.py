"""A team of one."""

from drmas_pl.agents.single.roles import ActionActor, SearchActor, SolutionActor, TextActor
from drmas_pl.agents.single.team import SingleTeam

__all__ = ["ActionActor", "SearchActor", "SingleTeam", "SolutionActor", "TextActor"]
