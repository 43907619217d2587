"""Solver and verifier in a loop."""

from drmas_pl.agents.loop.solver import Solver
from drmas_pl.agents.loop.team import LoopTeam
from drmas_pl.agents.loop.verifier import Verifier

__all__ = ["LoopTeam", "Solver", "Verifier"]
