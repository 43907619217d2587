"""Every task of the reasoning-gym library, with the library's own scorers."""

from drmas_pl.envs.reasoning_gym.env import ReasoningGymEnv, make_tasks

__all__ = ["ReasoningGymEnv", "make_tasks"]
