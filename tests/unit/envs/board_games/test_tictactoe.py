"""Rules and perfect play of tic-tac-toe."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

import pytest

from drmas_pl.envs.board_games.tictactoe import TicTacToe, draw_opening, play_opening


def positions() -> set[TicTacToe]:
    seen: set[TicTacToe] = set()
    queue = [TicTacToe()]
    while queue:
        state = queue.pop()
        if state not in seen:
            seen.add(state)
            queue += [state.after(move) for move in state.legal()]
    return seen


@cache
def games(state: TicTacToe) -> tuple[int, int, int]:
    """Count how the games from here on end: won by the first, won by the second, drawn."""
    if state.scores is not None:
        return tuple(int(state.scores == score) for score in ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5)))  # type: ignore[return-value]
    parts = [games(state.after(move)) for move in state.legal()]
    return tuple(map(sum, zip(*parts, strict=True)))  # type: ignore[return-value]


def test_the_game_has_as_many_positions_and_endings_as_is_known() -> None:
    # 5478 positions can be reached; of 255168 games X wins 131184, O wins 77904 and 46080 are drawn
    assert len(positions()) == 5478
    assert games(TicTacToe()) == (131184, 77904, 46080)


def worst(state: TicTacToe, player: int) -> float:
    """Return the lowest score that a perfect player ever gets against any moves of the other one."""
    if state.scores is not None:
        return state.scores[player]
    moves = state.optimal() if state.current_player == player else state.legal()
    return min(worst(state.after(move), player) for move in moves)


@pytest.mark.parametrize("player", [0, 1])
def test_perfect_play_is_never_beaten(player: int) -> None:
    assert worst(TicTacToe(), player) == 0.5


def test_perfect_play_wins_where_it_can() -> None:
    assert TicTacToe("XX.OO....").optimal() == {"3": 1.0}
    assert set(TicTacToe().optimal()) == set("123456789")


def test_openings_are_legal_and_leave_the_game_open() -> None:
    lengths = set()
    for seed in range(200):
        moves = draw_opening(Random(seed), 4)
        assert play_opening(moves).scores is None
        lengths.add(len(moves))
    assert lengths == {0, 1, 2, 3, 4}
    for bad in (-1, 5):
        with pytest.raises(ValueError, match=r"opening_moves must be in \[0, 4\]"):
            draw_opening(Random(0), bad)


@pytest.mark.parametrize(("moves", "message"), [("11", "legal"), ("0", "legal"), ("14253", "not end")])
def test_bad_openings_are_refused(moves: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"must {message}" if message == "not end" else f"must be {message}"):
        play_opening(tuple(moves))


def test_every_position_is_drawn_with_its_free_cells() -> None:
    for cells in map("".join, product("XO.", repeat=9)):
        shown = TicTacToe(cells).public().split()
        assert [sign if sign in "XO" else "." for sign in shown] == list(cells)
