"""Two agents play against each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drmas_pl.agents.self_play import Player, SelfPlayTeam
from drmas_pl.algorithms.credit_rules import ReturnToGo
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.config.construct import build
from drmas_pl.envs.board_games import BoardGameEnv, make_tasks
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Observation, Task, Trajectory
from tests.helpers.launching import configure
from tests.helpers.toy import EvenEnv, make_turn

EMPTY = Task("t", "game", metadata={"opening": []})
DEAL = Task("k", "game", metadata={"cards": ["K", "J"]})


def start(task: Task = EMPTY, **settings: Any) -> SelfPlayTeam:
    game: Any = "kuhn" if task is DEAL else "tictactoe"
    team = SelfPlayTeam(BoardGameEnv([task], game=game, show_rules=False, **settings))
    team.reset(seed=0)
    return team


def say(team: SelfPlayTeam, *moves: str) -> Any:
    for move in moves:
        outcome = team.step(f"<action>{move}</action>")
    return outcome


def test_seats_take_turns_and_the_reward_is_the_first_ones_score() -> None:
    team = start()
    assert team.agent_selection == "first"
    assert say(team, "1")[4]["agent"] == "second"
    assert say(team, "4", "2", "5")[1:3] == (0.0, False)
    _, reward, terminated, _, info = say(team, "3")
    assert (reward, terminated, info["success"], info["agent"]) == (1.0, True, True, None)


def test_who_begins_depends_on_the_opening() -> None:
    assert start(replace(EMPTY, metadata={"opening": ["5"]})).agent_selection == "second"


@pytest.mark.parametrize("text", ["hm", "<action>1</action>", "<action>10</action>", "<action>2", ""])
def test_an_unusable_utterance_loses_for_its_author(text: str) -> None:
    team = start()
    say(team, "1")
    _, reward, terminated, truncated, info = team.step(text)
    assert (reward, terminated, truncated, info["metrics"]["illegal_moves"]) == (1.0, True, False, 1.0)
    if text != "<action>1</action>":
        assert start().step(text)[1:3] == (0.0, True)


def test_each_seat_sees_its_own_card_and_nothing_that_the_other_wrote() -> None:
    team = start(DEAL)
    team.step("<think>I hold the king.</think>secretly <action>check</action>")
    first, second = team.observe("first"), team.observe("second")
    assert first.question == second.question and "card" not in first.question
    assert first.history[-1] == Message("env", "private", "You are the first player. Your card: K")
    assert second.history[-1] == Message("env", "private", "You are the second player. Your card: J")
    assert first.history[:-1] == second.history[:-1]
    shown = str(second)
    assert "king" not in shown and "secretly" not in shown and "card: K" not in shown
    assert "the first player: check" in shown


@pytest.mark.parametrize(("player", "rival"), [("second", "first"), ("first", "second")])
def test_a_scripted_opponent_is_one_of_the_players(player: Any, rival: str) -> None:
    team = start(DEAL, opponent="optimal", opponent_player=player)
    assert team.agent_selection == rival
    assert str(team.observe(rival)).count("Your card") == 1
    reward = say(team, "bet" if rival == "first" else "fold")[1]
    # the king takes the pot; the reward is the first player's score whoever played it
    assert reward == 0.75 and team.unwrapped.scores == (0.75, 0.25)  # type: ignore[attr-defined]
    team = start(opponent="random", opponent_player=player)
    assert say(team, next(iter(team.unwrapped.state.legal())))[4]["agent"] == rival  # type: ignore[attr-defined]


def test_zero_sum_credit_pays_each_seat_its_own_score() -> None:
    credit = build(configure("+env=kuhn", "+agents=self_play")["credit"], "credit")
    turns = [
        make_turn(player, index=place, agent_index=place // 2, reward=reward)
        for place, (player, reward) in enumerate([("first", 0.0), ("second", 0.0), ("first", 0.75)])
    ]
    trajectory = Trajectory(DEAL, 0, tuple(turns), 0.75, "terminated")
    table = build_turn_batch(
        [trajectory], {player: Player(player) for player in ("first", "second")}, credit=credit
    )
    assert table.score.tolist() == [0.75, 0.25, 0.75]


def test_another_credit_rule_takes_the_place_of_the_teams_whole() -> None:
    words = ("+env=kuhn", "+agents=self_play", "credit=return_to_go")
    assert build(configure(*words)["credit"], "credit") == ReturnToGo()


def test_prompts_say_what_there_is() -> None:
    observation = Observation(
        "Q", (Message("env", "information", "board"), Message("env", "private", "You are the first player."))
    )
    assert Player.templates["compact"].text(observation) == "Q\nboard\nYou are the first player.\nact: "
    _, user = Player.templates["full"].messages(observation)
    assert user["content"].startswith("Q\n\nNow:\nboard\n\nYou are the first player.\n\nThink")
    assert start().step("<action>your action</action>")[1] == 0.0


def test_an_environment_without_players_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an environment of two players, got EvenEnv"):
        SelfPlayTeam(EvenEnv([EMPTY]))


@pytest.mark.parametrize("game", ["tictactoe", "kuhn"])
@pytest.mark.parametrize("opponent", [None, "random"])
def test_keeps_the_contract_of_a_team(game: Any, opponent: Any) -> None:
    tasks = make_tasks(game, size=2, opening_moves=0)

    def script(agent: str, observation: Observation) -> str:
        shown = observation.history[0].text if len(observation.history) > 1 else observation.question
        offered = shown.rpartition("possible actions: ")[2].rstrip(".").split(", ")
        return f"<action>{offered[0]}</action>"

    check_team(SelfPlayTeam(BoardGameEnv(tasks, game=game, opponent=opponent)), script)
    check_team(SelfPlayTeam(BoardGameEnv(tasks, game=game, opponent=opponent)))
