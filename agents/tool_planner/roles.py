"""The roles of tool agent and planner."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.tool_planner import prompts
from drmas_pl.parsing import ActionGrammar, Grammar


class Proposer(Agent):
    """Writes ``<proposal>moves</proposal>``, which the environment tries out on a copy."""

    grammar: ClassVar[Grammar] = ActionGrammar("proposal")
    templates = prompts.TOOL


class Planner(Agent):
    """Writes ``<action>moves</action>``, which is played; sees the proposal and what it would lead to."""

    grammar: ClassVar[Grammar] = ActionGrammar("action")
    templates = prompts.PLANNER
