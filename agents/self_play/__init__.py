"""Two agents play against each other."""

from drmas_pl.agents.self_play.roles import Player
from drmas_pl.agents.self_play.team import SelfPlayTeam

__all__ = ["Player", "SelfPlayTeam"]
