"""Mathematics problems with one action: the team's final solution."""

from drmas_pl.envs.math.env import MathEnv

__all__ = ["MathEnv"]
