"""The role that decides."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.tool_planner.team import ACTION
from drmas_pl.agents.tool_planner.templates import COMPACT_PLANNER, PLANNER
from drmas_pl.parsing import Grammar


class Planner(Agent):
    """Writes ``<action>moves</action>``, which is played; sees the proposal and what it would lead to."""

    grammar: ClassVar[Grammar] = ACTION
    templates = {"full": PLANNER, "compact": COMPACT_PLANNER}
