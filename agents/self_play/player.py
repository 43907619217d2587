"""The role of a player."""

from __future__ import annotations

from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.agents.self_play.team import MOVE
from drmas_pl.agents.self_play.templates import COMPACT_PLAYER, PLAYER
from drmas_pl.parsing import Grammar


class Player(Agent):
    """Writes ``<action>move</action>``; sees what this player may see."""

    grammar: ClassVar[Grammar] = MOVE
    templates = {"full": PLAYER, "compact": COMPACT_PLAYER}
