"""Gymnasium environments in text: observations, actions, success, limits, clones, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from drmas_pl.agents.single import SingleTeam
from drmas_pl.env import TextEnv
from drmas_pl.errors import ConfigError, ContractError
from drmas_pl.integrations.gymnasium_env import GymnasiumTextEnv, as_text_env
from drmas_pl.testing.conformance import check_env
from drmas_pl.types import Task
from tests.helpers.toy import EvenEnv, make_tasks


class Walk(gymnasium.Env[Any, Any]):
    """A walk on five places: 0 goes left, 1 right, the last place is the goal; where it starts is drawn."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2)

    def __init__(self, **info: Any) -> None:
        self.info = info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.options = options
        self.place = int(self.np_random.integers(4))
        return self.place, {}

    def step(self, action: Any) -> Any:
        self.place = max(self.place + (1 if action else -1), 0)
        won = self.place == 4
        return np.int64(self.place), np.float32(won), np.bool_(won), False, dict(self.info)


class Fixed(gymnasium.Env[Any, Any]):
    """Shows one observation for ever."""

    def __init__(self, observation: Any, observations: Any = None, actions: Any = None) -> None:
        self.observation = observation
        if observations is not None:
            self.observation_space = observations
        if actions is not None:
            self.action_space = actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation, {}

    def step(self, action: Any) -> Any:
        self.action = action
        return self.observation, 0.0, False, False, {}


def test_numbers_are_written_and_read() -> None:
    env = GymnasiumTextEnv(Walk())
    start, _ = env.reset(seed=0)
    place = int(start)
    while place < 3:
        text, *_ = env.step(" 1\n")
        place += 1
        assert text == str(place)
    observation, reward, terminated, truncated, info = env.step("1")
    assert (observation, reward, terminated, truncated, info["success"]) == ("4", 1.0, True, False, True)
    assert type(reward) is float and type(terminated) is bool


@pytest.mark.parametrize("text", ["", "2", "-1", "left", "1.0", "9" * 5000, "0" * 5000])
def test_text_that_names_no_action_is_answered_and_costs_a_turn(text: str) -> None:
    env = GymnasiumTextEnv(Walk(), max_turns=2)
    env.reset(seed=0)
    expected = "This names no action: answer with a whole number from 0 to 1"
    assert env.step(text)[:4] == (expected, 0.0, False, False)
    assert env.step(text)[:4] == (expected, 0.0, False, True)


def test_a_space_may_start_anywhere() -> None:
    env = GymnasiumTextEnv(Fixed("state", actions=spaces.Discrete(3, start=-1)))
    env.reset(seed=0)
    env.step("-1")
    assert env.env.unwrapped.action == -1  # type: ignore[attr-defined]
    assert env.step("2")[0].endswith("from -1 to 1")


@pytest.mark.parametrize(
    ("observation", "space", "text"),
    [
        ("as it is", None, "as it is"),
        ("as it is", spaces.Text(20), "as it is"),
        (np.int64(3), spaces.Discrete(5), "3"),
        (
            (14, 10, 0),
            spaces.Tuple([spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2)]),
            "14, 10, 0",
        ),
        (np.array([2, 0]), spaces.MultiDiscrete([3, 3]), "2 0"),
        (np.array([1, 0], dtype=np.int8), spaces.MultiBinary(2), "1 0"),
        (
            {"seen": "a door", "keys": 2},
            spaces.Dict({"seen": spaces.Text(10), "keys": spaces.Discrete(3)}),
            "seen: a door\nkeys: 2",
        ),
    ],
    ids=str,
)
def test_observations_of_words_and_whole_numbers_are_written_out(
    observation: Any, space: Any, text: str
) -> None:
    assert GymnasiumTextEnv(Fixed(observation, space)).reset(seed=0)[0] == text


def test_functions_and_overridden_methods_give_other_spaces_a_text() -> None:
    box = spaces.Box(-1, 1, (2,))
    made = GymnasiumTextEnv(
        Fixed(np.array([0.5, -0.25]), box, box),
        observation_to_text=lambda values: " ".join(f"{value:.2f}" for value in values),
        text_to_action=lambda text: np.array([float(word) for word in text.split()]),
    )
    assert made.reset(seed=0)[0] == "0.50 -0.25"
    made.step("1 -1")
    assert made.env.unwrapped.action.tolist() == [1.0, -1.0]  # type: ignore[attr-defined]
    assert made.step("one")[0] == "This names no action: could not convert string to float: 'one'"

    class Own(GymnasiumTextEnv):
        def observation_to_text(self, observation: Any) -> str:
            return "two numbers"

        def text_to_action(self, text: str) -> Any:
            return np.zeros(2)

    assert Own(Fixed(np.zeros(2), box, box)).reset(seed=0)[0] == "two numbers"


@pytest.mark.parametrize(
    ("env", "word"),
    [
        (Fixed(0, spaces.Box(0, 1)), "observation"),
        (Fixed(0, spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)])), "observation"),
        (Fixed("x", actions=spaces.MultiDiscrete([2, 2])), "action"),
    ],
)
def test_other_spaces_are_refused_at_once_with_the_remedy(env: Any, word: str) -> None:
    remedy = "observation_to_text" if word == "observation" else "text_to_action"
    with pytest.raises(ConfigError, match=rf"^{word}s of Fixed are .*give a function: .*{remedy}"):
        SingleTeam(env)


def test_an_observation_that_is_no_text_after_all_is_named() -> None:
    with pytest.raises(
        ContractError, match=r"^an observation of Fixed must be a text, .*, got 0.5 \(float\)$"
    ):
        GymnasiumTextEnv(Fixed(0.5)).reset(seed=0)


@pytest.mark.parametrize(
    ("info", "threshold", "success"),
    [
        ({}, 1.0, True),
        ({}, 2.0, False),
        ({"success": False}, 1.0, False),
        ({"is_success": np.True_}, 2.0, True),
    ],
)
def test_success_is_what_info_says_or_a_reward_that_is_large_enough(
    info: dict[str, Any], threshold: float, success: bool
) -> None:
    env = GymnasiumTextEnv(Walk(**info), success_reward=threshold)
    place = int(env.reset(seed=0)[0])
    outcomes = [env.step("1") for _ in range(4 - place)]
    assert [outcome[4]["success"] for outcome in outcomes] == [False] * (3 - place) + [success]


def test_every_sample_of_a_task_starts_from_the_same_state_whatever_the_seed() -> None:
    env = GymnasiumTextEnv(Walk(), episodes=20)
    assert [task.id for task in env.tasks[:2]] == ["start-0", "start-1"] and len(env.tasks) == 20
    starts = [{env.reset(seed=seed, options={"task": task})[0] for seed in range(3)} for task in env.tasks]
    assert all(len(found) == 1 for found in starts) and len(set.union(*starts)) == 4
    given = Task("q", "a question")
    env.reset(seed=0, options={"task": given})
    assert env.env.unwrapped.options == {"task": given}  # type: ignore[attr-defined]


def test_tasks_and_the_word_for_success_are_the_environment_s_own() -> None:
    class Named(Walk):
        tasks = make_tasks(3)
        metric = "arrived"

    env = GymnasiumTextEnv(gymnasium.wrappers.TimeLimit(Named(), 7))
    assert env.tasks == make_tasks(3) and SingleTeam(env).unwrapped.metric == "arrived"
    assert GymnasiumTextEnv(Named(), tasks=make_tasks(1)).tasks == make_tasks(1)


def test_a_time_limit_truncates_and_is_no_success() -> None:
    env = GymnasiumTextEnv(gymnasium.wrappers.TimeLimit(Walk(is_success=True), 1))
    env.reset(seed=2)
    assert env.step("0")[2:] == (False, True, {"success": False, "metrics": {}, "rewards": {}})


@pytest.mark.parametrize("env", [Walk(), gymnasium.make("FrozenLake-v1")], ids=["plain", "made"])
def test_it_keeps_the_contract_of_a_text_environment(env: Any) -> None:
    check_env(GymnasiumTextEnv(env, max_turns=6), actions=("1", "0"))


def test_text_environments_and_wrappers_around_them_are_left_alone() -> None:
    class Loud(gymnasium.ObservationWrapper[Any, Any, Any]):
        def observation(self, observation: str) -> str:
            return observation.upper()

    env = EvenEnv(make_tasks(1))
    wrapped: Any = Loud(env)
    assert as_text_env(env) is env and as_text_env(wrapped) is wrapped
    team = SingleTeam(wrapped)
    assert team.reset(seed=0)[0] == "TOY 0?" and team.unwrapped is env
    assert isinstance(SingleTeam(Walk()).unwrapped, TextEnv)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^env must be a Gymnasium environment, got 'search' \(str\)$"):
        SingleTeam("search")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^max_turns must be at least 1, got 0$"):
        GymnasiumTextEnv(Walk(), max_turns=0)
