"""One agent for each player of a game."""

from drmas_pl.agents.players.team import PlayersTeam

__all__ = ["PlayersTeam"]
