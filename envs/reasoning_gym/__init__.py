"""Every task of the reasoning-gym library, with the library's own scorers."""

import gymnasium

from drmas_pl.envs.reasoning_gym.env import ReasoningGymEnv, make_tasks

__all__ = ["ReasoningGymEnv", "make_tasks"]

gymnasium.register(
    "drmas/ReasoningGym-v0", entry_point="drmas_pl.envs.reasoning_gym:ReasoningGymEnv", disable_env_checker=True, order_enforce=False
)
