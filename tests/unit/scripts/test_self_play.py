"""Values of self-play against numbers that are known, and programs that play by the rules."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drmas_pl.envs.board_games.game import uniform
from drmas_pl.types import Task
from scripts.self_play import OPPONENTS, average, begin, move, paid, run, value


def test_the_first_player_of_poker_loses_an_eighteenth_chip_between_equilibria() -> None:
    optimal = OPPONENTS["unbeatable"]
    found = sum(value(begin("kuhn", place), (optimal, optimal)) for place in range(6)) / 6
    assert found == pytest.approx(-1 / 18)
    assert average("kuhn", optimal, optimal) == pytest.approx(0.0)
    assert average("kuhn", uniform, optimal) < 0 < average("kuhn", optimal, uniform)


def test_perfect_play_of_tic_tac_toe_beats_random_moves() -> None:
    assert average("tictactoe", OPPONENTS["unbeatable"], uniform) > 0.5


@pytest.mark.parametrize("game", ["kuhn", "tictactoe"])
def test_the_program_pays_what_the_game_pays(game: str) -> None:
    asked: list[str] = []

    class Player:
        async def ask(self, text: str) -> str:
            asked.append(text)
            return "a"

    task = Task("t", game, metadata={"game": (game, 1)})
    players: Any = {"first": Player(), "second": Player()}
    found = asyncio.run(run(task, players))
    state = begin(game, 1)
    while state.legal():
        state = state.after(move(state, "a"))
    assert found == {"first": paid(state), "second": -paid(state)} and asked
