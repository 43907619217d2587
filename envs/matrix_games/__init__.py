"""Repeated games in which two players choose at once: rock–paper–scissors and matching pennies."""

from drmas_pl.envs.matrix_games.env import MatrixGameEnv, make_tasks

__all__ = ["MatrixGameEnv", "make_tasks"]
