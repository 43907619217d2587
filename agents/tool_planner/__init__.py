"""A tool agent proposes moves and has them tried out, a planner decides."""

from drmas_pl.agents.tool_planner.roles import Planner, Proposer
from drmas_pl.agents.tool_planner.team import ToolPlannerTeam

__all__ = ["Planner", "Proposer", "ToolPlannerTeam"]
