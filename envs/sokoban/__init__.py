"""Sokoban: push every box onto a goal."""

from drmas_pl.envs.sokoban.env import SokobanEnv, make_tasks

__all__ = ["SokobanEnv", "make_tasks"]
