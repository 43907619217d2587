"""Concrete text environments, importable as `drmas_pl.envs`; importing it registers them with Gymnasium."""

import gymnasium

# names alone: an environment's module is imported when it is made
for _id, _entry_point in (
    ("drmas/Search-v0", "drmas_pl.envs.search:embedded_search"),
    ("drmas/Math-v0", "drmas_pl.envs.math:MathEnv"),
    ("drmas/Code-v0", "drmas_pl.envs.code:CodeEnv"),
    ("drmas/MathTool-v0", "drmas_pl.envs.math_tool:MathToolEnv"),
    ("drmas/ReasoningGym-v0", "drmas_pl.envs.reasoning_gym:ReasoningGymEnv"),
    ("drmas/PlanPath-v0", "drmas_pl.envs.plan_path:PlanPathEnv"),
    ("drmas/Sokoban-v0", "drmas_pl.envs.sokoban:SokobanEnv"),
    ("drmas/Sudoku-v0", "drmas_pl.envs.sudoku:SudokuEnv"),
):
    gymnasium.register(_id, entry_point=_entry_point, disable_env_checker=True, order_enforce=False)
for _name, _game in (("RockPaperScissors", "rock_paper_scissors"), ("MatchingPennies", "matching_pennies")):
    gymnasium.register(
        f"drmas/{_name}-v0",
        entry_point="drmas_pl.envs.matrix_games:MatrixGameEnv",
        kwargs={"game": _game},
        disable_env_checker=True,
        order_enforce=False,
    )
for _game in ("TicTacToe", "Kuhn"):
    gymnasium.register(
        f"drmas/{_game}-v0",
        entry_point="drmas_pl.envs.board_games:BoardGameEnv",
        kwargs={"game": _game.lower()},
        disable_env_checker=True,
        order_enforce=False,
    )
