"""The role that proposes moves."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.tool_planner.team import PROPOSAL
from drmas_pl.agents.tool_planner.templates import COMPACT_TOOL, TOOL
from drmas_pl.parsing import Grammar


class Proposer(Agent):
    """Writes ``<proposal>moves</proposal>``, which the environment tries out on a copy."""

    grammar: ClassVar[Grammar] = PROPOSAL
    templates = {"full": TOOL, "compact": COMPACT_TOOL}
