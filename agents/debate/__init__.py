"""Three debaters who answer at once, see each other's solutions, answer again and vote."""

from drmas_pl.agents.debate.roles import Debater
from drmas_pl.agents.debate.team import DebateTeam

__all__ = ["DebateTeam", "Debater"]
