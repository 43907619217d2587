"""Mathematics problems that can be worked out with a program."""

from drmas_pl.envs.math_tool.env import Calculation, MathToolEnv

__all__ = ["Calculation", "MathToolEnv"]
