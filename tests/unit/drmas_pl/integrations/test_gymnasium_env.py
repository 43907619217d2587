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
from drmas_pl.integrations.gymnasium_env import GymnasiumTextEnv, as_text_env, make_text_env
from drmas_pl.integrations.gymnasium_env import make_tasks as make_starts
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
    env = GymnasiumTextEnv(Walk(), show_actions=False)
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
        (Fixed(0, spaces.Box(0, 255, (96, 96, 3))), "observation"),
        (Fixed(0, spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 255, (96, 96, 3))])), "observation"),
        (Fixed("x", actions=spaces.Box(0, 1)), "action"),
    ],
)
def test_other_spaces_are_refused_at_once_with_the_remedy(env: Any, word: str) -> None:
    remedy = "observation_to_text" if word == "observation" else "text_to_action"
    with pytest.raises(ConfigError, match=rf"^{word}s of Fixed are .*give a function: .*{remedy}"):
        SingleTeam(env)


def test_an_observation_that_is_no_text_after_all_is_named() -> None:
    with pytest.raises(ContractError, match=r"^an observation of Fixed must be a text, .*, got None$"):
        GymnasiumTextEnv(Fixed(None)).reset(seed=0)


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
    env = GymnasiumTextEnv(Walk(**info), success_reward=threshold, show_actions=False)
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
    metrics = {"illegal_actions": 0.0}
    assert env.step("0")[2:] == (False, True, {"success": False, "metrics": metrics, "rewards": {}})


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


def test_the_first_observation_says_what_an_action_is() -> None:
    named = GymnasiumTextEnv(Walk(), instructions="Go right.", action_names=("left", "right"))
    place = named.reset(seed=0)[0].split("\n\n")
    assert (place[0], place[2]) == ("Go right.", "Possible actions: 0 (left), 1 (right).")
    assert named.step("<RIGHT>.")[0] == str(int(place[1]) + 1)
    assert GymnasiumTextEnv(Walk()).reset(seed=0)[0].endswith("\n\nAn action is a whole number from 0 to 1.")
    with pytest.raises(ValueError, match=r"^action_names must hold one name for each .* got 1 names$"):
        GymnasiumTextEnv(Walk(), action_names=("left",))


def test_numbers_in_several_places_are_an_action() -> None:
    env = GymnasiumTextEnv(Fixed("state", actions=spaces.MultiDiscrete([3, 2], start=[1, 0])))
    assert env.reset(seed=0)[0].endswith(
        "An action is 2 whole numbers with spaces between them, of at least 0 1 and at most 3, 1."
    )
    env.step("3, 1")
    assert env.env.unwrapped.action.tolist() == [3, 1]  # type: ignore[attr-defined]
    for wrong in ("0 1", "3", "3 1 1", "one two"):
        assert env.step(wrong)[0] == "This names no action: answer with 2 whole numbers from 1 0 to 3 1"
    switches = GymnasiumTextEnv(Fixed("state", actions=spaces.MultiBinary(2)))
    switches.reset(seed=0)
    switches.step("0 1")
    assert switches.env.unwrapped.action.tolist() == [0, 1]  # type: ignore[attr-defined]


class Masked(Walk):
    """Does not let anybody go left at the first place."""

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return observation, {**info, "action_mask": np.array([self.place > 0, True])}

    def step(self, action: Any) -> Any:
        observation, *rest, info = super().step(action)
        return observation, *rest, {**info, "action_mask": np.array([self.place > 0, True])}


def test_a_mask_says_what_is_possible() -> None:
    env = GymnasiumTextEnv(Masked(), episodes=20)
    task = next(task for task in env.tasks if env.reset(options={"task": task})[0].startswith("0\n"))
    assert env.reset(options={"task": task})[0] == "0\nPossible actions: 1."
    assert env.step("0")[0] == "This names no action: answer with one of 1"
    assert env.step("1")[0] == "1\nPossible actions: 0, 1."


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [("continue", (-0.5, False, 1.0)), ("end", (-0.5, True, 1.0)), ("random", (-0.5, False, 1.0))],
)
def test_a_rule_says_what_an_impossible_action_leads_to(rule: Any, outcome: Any) -> None:
    env = GymnasiumTextEnv(Masked(), episodes=20, on_illegal=rule, illegal_reward=-0.5)
    task = next(task for task in env.tasks if env.reset(options={"task": task})[0].startswith("0\n"))
    observation, reward, terminated, _, info = env.step("left")
    assert (reward, terminated, info["metrics"]["illegal_actions"]) == outcome and not info["success"]
    # the only possible action is played
    assert observation.startswith("1\n" if rule == "random" else "This names no action")
    with pytest.raises(ValueError, match="on_illegal must be one of continue, end, random, got 'skip'"):
        GymnasiumTextEnv(Walk(), on_illegal="skip")  # type: ignore[arg-type]
    assert env.reset(options={"task": task})[0] and env.illegal_actions == 0


def test_random_actions_come_from_the_start_state() -> None:
    def walk() -> list[str]:
        env = GymnasiumTextEnv(Walk(), on_illegal="random", max_turns=9)
        task = next(task for task in env.tasks if env.reset(options={"task": task})[0].startswith("0\n"))
        env.reset(options={"task": task})
        return [env.step("?")[0] for _ in range(3)]

    assert walk() == walk()


def test_registered_environments_are_made_with_their_arguments() -> None:
    env: Any = make_text_env(
        "FrozenLake-v1",
        is_slippery=False,
        render=True,
        action_names=["left", "down", "right", "up"],
        tasks=make_starts(size=2, seed=7),
    )
    lake, actions = env.reset(options={"task": env.tasks[0]})[0].split("\n\n")
    assert (lake, actions) == (
        "[S]FFF\nFHFH\nFFFH\nHFFG",
        "Possible actions: 0 (left), 1 (down), 2 (right), 3 (up).",
    )
    outcomes = [env.step(word) for word in ("right", "right", "down", "down", "down", "right")]
    assert outcomes[0][0] == "  (Right)\nS[F]FF\nFHFH\nFFFH\nHFFG"
    assert outcomes[-1][1:3] == (1.0, True) and outcomes[-1][4]["success"]
    assert [task.metadata["seed"] for task in env.tasks] == [7, 8]
    # a text environment stays one
    assert isinstance(make_text_env("drmas_pl.envs:drmas/TicTacToe-v0", size=1).unwrapped, TextEnv)
    for wrong in ({"id": "Nope-v1"}, {"id": "FrozenLake-v1", "colour": 1}, {"id": "no_such_module:X-v0"}):
        with pytest.raises(ConfigError, match=r"^Gymnasium cannot make "):
            make_text_env(**wrong)
