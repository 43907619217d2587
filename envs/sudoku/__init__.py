"""Sudoku of 4 × 4 or 9 × 9 cells."""

from drmas_pl.envs.sudoku.env import SudokuEnv, make_tasks

__all__ = ["SudokuEnv", "make_tasks"]
