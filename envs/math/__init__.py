"""Mathematics problems with one action: the team's final solution."""

import gymnasium

from drmas_pl.envs.math.env import MathEnv

__all__ = ["MathEnv"]

gymnasium.register("drmas/Math-v0", entry_point="drmas_pl.envs.math:MathEnv", disable_env_checker=True, order_enforce=False)
