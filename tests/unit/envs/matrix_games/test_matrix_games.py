"""Games in which two players choose at once: payoffs, illegal choices, what is shown; and two agents who play them."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import pytest

from drmas_pl.agents.self_play import Player, SelfPlayTeam
from drmas_pl.agents.single import SingleTeam
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.config.construct import build
from drmas_pl.env import write_joint_action
from drmas_pl.envs.matrix_games import MatrixGameEnv, make_tasks
from drmas_pl.errors import CheckFailed
from drmas_pl.rollout.episode import Episode
from drmas_pl.testing.conformance import check_env, check_team, probe_team
from drmas_pl.types import Message
from tests.helpers.launching import configure
from tests.helpers.toy import make_turn

RPS = ("rock", "paper", "scissors")
BEATS = {("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")}


def start(game: Any = "rock_paper_scissors", **settings: Any) -> MatrixGameEnv:
    env = MatrixGameEnv(game=game, **settings)
    env.reset(seed=0)
    return env


def choose(env: MatrixGameEnv, first: str, second: str) -> Any:
    return env.step(write_joint_action({"first": first, "second": second}))


@pytest.mark.parametrize(("first", "second"), list(itertools.product(RPS, RPS)))
def test_every_pair_of_choices_has_its_payoff(first: str, second: str) -> None:
    wanted = ((first, second) in BEATS) - ((second, first) in BEATS)
    _, reward, terminated, _, info = choose(start(rounds=1), first, second)
    assert (reward, terminated, info["success"]) == (0.0, True, wanted == 1)
    assert info["rewards"] == {"first": wanted, "second": -wanted}
    assert info["metrics"] == {
        "payoff": wanted,
        "drawn_rounds": float(wanted == 0),
        "illegal_choices": 0.0,
    }


def test_pennies_match_or_do_not() -> None:
    env = start("matching_pennies", rounds=2)
    assert choose(env, "heads", "heads")[4]["rewards"] == {"first": 0.5, "second": -0.5}
    assert choose(env, "Tails ", "heads")[4]["rewards"] == {"first": -0.5, "second": 0.5}


@pytest.mark.parametrize(
    ("first", "second", "payoff"),
    [("rock", "lizard", 1.0), ("", "rock", -1.0), ("heads", "tails", 0.0)],
)
def test_a_choice_that_is_not_offered_loses_the_round(first: str, second: str, payoff: float) -> None:
    info = choose(start(rounds=1), first, second)[4]
    assert info["rewards"] == {"first": payoff, "second": -payoff}
    assert info["metrics"]["illegal_choices"] == (0.5 if payoff else 1.0)


@pytest.mark.parametrize("text", ["", "rock", "[1]", '{"first": 3}', '{"third": "rock"}', "[" * 9999])
def test_what_is_no_joint_action_is_nobodys_choice(text: str) -> None:
    info = start(rounds=1).step(text)[4]
    assert info["rewards"] == {"first": 0.0, "second": 0.0} and info["metrics"]["illegal_choices"] == 1.0


def test_the_question_and_what_follows() -> None:
    env = start(rounds=2)
    question, _ = env.reset(seed=0)
    assert question.startswith("Rock, paper, scissors: both players choose at once.")
    assert question.endswith("Round 1 of 2; possible actions: rock, paper, scissors.")
    observation, _, terminated, _, _ = choose(env, "rock", "pebble")
    assert not terminated and observation == (
        "Round 1: the first player chose rock, the second nothing.\nRounds won: 1 to 0.\n"
        "Round 2 of 2; possible actions: rock, paper, scissors."
    )
    assert choose(env, "rock", "paper")[0].endswith("Rounds won: 1 to 1.")
    bare = start("matching_pennies", show_rules=False)
    assert bare.reset(seed=0)[0] == "Round 1 of 3; possible actions: heads, tails."


def test_tasks_are_told_apart_by_their_names() -> None:
    names = [task.id for split in ("train", "test") for task in make_tasks(split=split, size=5)]  # type: ignore[arg-type]
    assert len(set(names)) == 10 and names[0] == "rock_paper_scissors/train/0/0"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MatrixGameEnv(game="chess"),
            "game must be one of rock_paper_scissors, matching_pennies, got 'chess'",
        ),
        (lambda: MatrixGameEnv(rounds=0), "rounds must be at least 1, got 0"),
        (lambda: make_tasks("chess"), "game must be one of"),  # type: ignore[arg-type]
        (
            lambda: make_tasks(size=0),
            "size must be at least 1 and split one of train, validation, test, got 0",
        ),
    ],
)
def test_wrong_settings_say_what_is_right(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["RockPaperScissors", "MatchingPennies"])
def test_keeps_the_contract_of_an_environment(name: str) -> None:
    env = gymnasium.make(f"drmas/{name}-v0")
    check_env(env, actions=[write_joint_action({"first": "rock", "second": "heads"})])
    check_team(SelfPlayTeam(env))


def test_two_agents_choose_at_once_and_see_nothing_of_the_other() -> None:
    team = SelfPlayTeam(start(rounds=2, show_rules=False))
    team.reset(seed=0)
    assert team.agents_selection == ("first", "second")
    team.step("<think>a secret</think><action>rock</action>")
    assert team.observe("second").history == (Message("env", "private", "You are the second player."),)
    info = team.step("no action at all")[4]
    assert info["rewards"] == {"first": 0.5, "second": -0.5}
    (latest, own) = team.observe("second").history
    assert "rock, the second nothing" in latest.text and "secret" not in latest.text
    assert own.text == "You are the second player."


def test_each_player_is_credited_with_its_own_payoff() -> None:
    credit = build(configure("+env=rock_paper_scissors", "+agents=self_play")["credit"], "credit")
    games = []
    for sample, second in enumerate(("paper", "rock", "scissors")):
        team = SelfPlayTeam(start(rounds=1))
        question, _ = team.reset(seed=0)
        episode = Episode(team, question, max_calls=8)
        said = {"first": "rock", "second": second}
        grammar = Player.grammar
        turns = episode.place(
            [
                make_turn(name, parsed=grammar.parse(f"<action>{choice}</action>"))
                for name, choice in said.items()
            ]
        )
        episode.add(turns, team.hear(turns))
        games.append(episode.trajectory(team.unwrapped.tasks[0], sample, mode="sampled"))
    table = build_turn_batch(games, {name: Player(name) for name in ("first", "second")}, credit=credit)
    assert table.score.tolist() == [-1.0, 1.0, 0.0, 0.0, 1.0, -1.0]


def test_a_team_without_such_agents_is_refused_at_the_start() -> None:
    with pytest.raises(CheckFailed, match=r"rewards \['first', 'second'\]; this team has \['actor'\]"):
        probe_team(SingleTeam(MatrixGameEnv(), on_invalid="continue"), make_tasks(size=1))
