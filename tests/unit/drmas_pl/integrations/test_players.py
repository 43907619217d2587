"""Environments of several players: turns, moves at once, scripted players, actions that are none, pay and success."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from drmas_pl.env import write_joint_action
from drmas_pl.integrations.players import PlayerOptions, PlayersEnv
from drmas_pl.testing.conformance import check_env
from drmas_pl.types import Task

OPTIONS = PlayerOptions(
    opponents={},
    instructions="",
    on_illegal="end",
    illegal_reward=-1.0,
    success_player=None,
    success_reward=1.0,
    max_turns=20,
)


class Race(PlayersEnv):
    """Each of two players adds 1 or 2 to its own number; who has 3 first ends the game, is paid 1 and the other one -1."""

    def __init__(self, *, at_once: bool = False, cut_at: int = 99, **changed: Any) -> None:
        super().__init__(dataclasses.replace(OPTIONS, **changed), episodes=3)
        self.at_once = at_once
        self.cut_at = cut_at
        self.use_players(("a", "b"))

    def start(self, task: Task, seed: int) -> None:
        self.reached = {"a": 0, "b": 0}
        self.next = "ab"[seed % 2]
        self.steps = 0

    def moving(self) -> tuple[str, ...]:
        if max(self.reached.values()) >= 3 or self.steps >= self.cut_at:
            return ()
        return ("a", "b") if self.at_once else (self.next,)

    def was_cut(self) -> bool:
        return max(self.reached.values()) < 3

    def describe(self, player: str) -> str:
        return f"You have {self.reached[player]}."

    def read(self, player: str, text: str) -> int:
        if text not in ("1", "2"):
            raise ValueError("answer with 1 or 2")
        return int(text)

    def draw(self, player: str) -> int:
        return int(self.np_random.integers(1, 3))

    def advance(self, actions: Mapping[str, Any]) -> Mapping[str, float]:
        self.steps += 1
        for player, number in actions.items():
            self.reached[player] += number
            self.next = "ba"["ab".index(player)]
        won = [player for player, number in self.reached.items() if number >= 3]
        return {player: (1.0 if player in won else -1.0) for player in ("a", "b")} if won else {}


def play(env: Race, *said: str, task: int = 0) -> Any:
    env.reset(seed=0, options={"task": env.tasks[task]})
    outcome: Any = None
    for text in said:
        outcome = env.step(text)
    return outcome


def test_players_take_turns_and_are_paid_each_for_itself() -> None:
    env = Race(instructions="First to 3 wins.")
    assert env.reset(seed=0, options={"task": env.tasks[0]})[0] == "First to 3 wins.\n\na to move."
    assert (env.players_to_move, env.view("a"), env.view("b")) == (("a",), "You have 0.", "")
    assert env.step("2")[0] == "b to move." and env.view("b") == "You have 0."
    env.step("1")
    observation, reward, terminated, truncated, info = env.step("1")
    assert (observation, reward, terminated, truncated) == ("", 0.0, True, False)
    assert info["rewards"] == {"a": 1.0, "b": -1.0} and info["success"]
    assert info["metrics"] == {"illegal_actions": 0.0, "game_moves": 3.0}
    # the start state decides who begins, and the first player's reward about success
    assert play(Race(), "2", "1", "1", task=1)[4]["success"] is False
    assert play(Race(success_player="b"), "2", "1", "1", task=1)[4]["success"] is True


def test_players_move_at_once() -> None:
    env = Race(at_once=True)
    env.reset(seed=0)
    assert env.players_to_move == ("a", "b") and env.view("b") == "You have 0."
    assert env.step(write_joint_action({"a": "2", "b": "1"}))[0] == "a and b to move."
    assert env.view("a") == "You have 2."
    assert env.step(write_joint_action({"a": "1", "b": "2"}))[4]["rewards"] == {"a": 1.0, "b": 1.0}


def test_a_move_against_the_rules_ends_the_game_for_its_author() -> None:
    _, _, terminated, _, info = play(Race(), "2", "three")
    assert terminated and info["rewards"] == {"a": 0.0, "b": -1.0} and not info["success"]
    assert info["metrics"]["illegal_actions"] == 1.0


def test_its_author_may_be_told_and_asked_again() -> None:
    env = Race(on_illegal="continue", illegal_reward=-0.1)
    assert play(env, "?")[4]["rewards"] == {"a": -0.1, "b": 0.0}
    assert env.view("a") == "You have 0.\nThis names no action: answer with 1 or 2"
    env.step("!")
    assert env.view("a").count("This names no action") == 1 and env.players_to_move == ("a",)
    env.step("1")
    assert env.players_to_move == ("b",)
    # players who move at once all move again
    env = Race(at_once=True, on_illegal="continue", illegal_reward=0.0)
    play(env, write_joint_action({"a": "2", "b": "?"}))
    assert env.reached == {"a": 0, "b": 0} and "answer with 1 or 2" in env.view("b")
    assert play(env, "no joint action")[4]["metrics"]["illegal_actions"] == 2.0


def test_or_a_possible_move_is_made_for_it() -> None:
    env = Race(on_illegal="random", illegal_reward=-0.5)
    assert play(env, "?")[4]["rewards"] == {"a": -0.5, "b": 0.0}
    assert env.reached["a"] in (1, 2) and env.players_to_move == ("b",)


def test_scripted_players_move_by_themselves() -> None:
    seen: list[str] = []

    def script(view: str) -> str:
        seen.append(view)
        return "1"

    env = Race(opponents={"b": script}, instructions="Go.")
    assert env.players == ("a",)
    assert env.reset(seed=0, options={"task": env.tasks[1]})[0] == "Go.\n\nYou have 0."
    assert seen == ["You have 0."] and env.reached == {"a": 0, "b": 1}
    observation, reward, *_, info = env.step("2")
    assert (observation, reward, info["rewards"]) == ("You have 2.", 0.0, {})
    # where one player is left, its reward is the environment's
    assert env.step("2")[1:3] == (1.0, True) and seen[-1] == "You have 1."


def test_random_opponents_follow_the_seed_of_the_sample() -> None:
    def moves(seed: int) -> list[int]:
        env = Race(opponents={"b": "random"})
        found = []
        for task in env.tasks * 4:
            env.reset(seed=seed, options={"task": task})
            env.step("1")
            found.append(env.reached["b"])
            seed += 1
        return found

    assert moves(5) == moves(5) and len(set(moves(5))) > 1


def test_limits_cut_and_are_no_success() -> None:
    assert play(Race(max_turns=1), "2")[2:4] == (False, True)
    assert play(Race(cut_at=2), "1", "1")[2:4] == (False, True)


@pytest.mark.parametrize("settings", [{}, {"at_once": True}, {"opponents": {"a": "random"}}])
@pytest.mark.parametrize("rule", ["end", "continue", "random"])
def test_it_keeps_the_contract(settings: dict[str, Any], rule: str) -> None:
    check_env(Race(on_illegal=rule, **settings), actions=("1", "2", write_joint_action({"a": "1", "b": "2"})))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"opponents": {"c": "random"}}, r"name \['c'\]; the players are \['a', 'b'\]"),
        ({"success_player": "c"}, r"name \['c'\]"),
        ({"opponents": {"a": "optimal"}}, "an opponent must be 'random', or a function"),
        ({"opponents": {"a": "random", "b": "random"}}, "all players are scripted"),
        ({"on_illegal": "lose"}, "on_illegal must be one of continue, end, random, got 'lose'"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Race(**settings)
