"""The role of a player."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.self_play import prompts
from drmas_pl.parsing import ActionGrammar, Grammar


class Player(Agent):
    """Writes ``<action>move</action>``; sees what this player may see."""

    grammar: ClassVar[Grammar] = ActionGrammar("action")
    templates = prompts.PLAYER
