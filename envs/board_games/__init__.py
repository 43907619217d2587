"""Games of two players for self-play: tic-tac-toe and Kuhn poker."""

from drmas_pl.envs.board_games.env import BoardGameEnv, make_tasks

__all__ = ["BoardGameEnv", "make_tasks"]
