"""Solver and verifier in a loop."""

from drmas_pl.agents.loop.roles import Solver, Verifier
from drmas_pl.agents.loop.team import LoopTeam

__all__ = ["LoopTeam", "Solver", "Verifier"]
