"""The solver of the solver/verifier loop."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.loop.templates import COMPACT_SOLVER, SOLVER
from drmas_pl.parsing import BoxedGrammar, Grammar


class Solver(Agent):
    r"""Works the task out and ends with ``\boxed{…}``; sees its own attempts and the verifier's reviews."""

    grammar: ClassVar[Grammar] = BoxedGrammar()
    templates = {"full": SOLVER, "compact": COMPACT_SOLVER}
