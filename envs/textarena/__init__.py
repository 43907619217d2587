"""Games of the TextArena library."""

from drmas_pl.envs.textarena.env import TextArenaEnv
from drmas_pl.integrations.gymnasium_env import make_tasks

__all__ = ["TextArenaEnv", "make_tasks"]
