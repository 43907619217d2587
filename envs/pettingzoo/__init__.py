"""Environments of the PettingZoo library in text."""

from drmas_pl.envs.pettingzoo.env import PettingZooEnv
from drmas_pl.integrations.gymnasium_env import make_tasks

__all__ = ["PettingZooEnv", "make_tasks"]
