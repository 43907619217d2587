"""PettingZoo's environments in text; PettingZoo's own tests hold what is made of them to its contract."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from drmas_pl.agents.players import PlayersTeam
from drmas_pl.envs.pettingzoo import PettingZooEnv
from drmas_pl.errors import ConfigError
from drmas_pl.integrations.team_game import as_aec_env
from drmas_pl.testing.conformance import check_env, check_team

CLASSIC = "pettingzoo.classic"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """PettingZoo sets this variable when it is first imported."""
    monkeypatch.setenv("SDL_AUDIODRIVER", "dsp")


def make(game: str, **settings: Any) -> PettingZooEnv:
    return PettingZooEnv(f"{CLASSIC}.{game}", **settings)


@pytest.mark.adapters
def test_observations_and_masks_are_written_and_actions_read() -> None:
    env = make("tictactoe_v3:env", player_names=["player_0", "player_1"], instructions="Three in a row win.")
    assert env.reset(seed=0)[0] == "Three in a row win.\n\nplayer_0 to move."
    board = "\n".join(["0 0 0"] * 3)
    assert env.view("player_0") == (
        f"You are player_0.\nplane 1:\n{board}\n\nplane 2:\n{board}\nPossible actions: 0, 1, 2, 3, 4, 5, 6, 7, 8."
    )
    env.step("[4]")
    assert env.view("player_1").endswith("Possible actions: 0, 1, 2, 3, 5, 6, 7, 8.")
    for move in ("0", "3", "1"):
        env.step(move)
    # cells are counted column by column: 3, 4 and 5 are a line
    _, reward, terminated, _, info = env.step("5")
    assert (reward, terminated, info["rewards"], info["success"]) == (
        0.0,
        True,
        {"player_0": 1.0, "player_1": -1.0},
        True,
    )


@pytest.mark.adapters
def test_an_impossible_action_costs_its_author_the_game() -> None:
    env = make("tictactoe_v3:env")
    env.reset(seed=0)
    env.step("4")
    _, _, terminated, _, info = env.step("4")
    assert terminated and info["rewards"] == {"player_1": 0.0, "player_2": -1.0}


@pytest.mark.adapters
def test_all_move_at_once_in_a_parallel_environment() -> None:
    env = make("rps_v2:parallel_env", arguments={"max_cycles": 2}, action_names=["rock", "paper", "scissors"])
    env.reset(seed=0)
    assert env.players_to_move == ("player_0", "player_1")
    assert env.view("player_0") == (
        "You are player_0.\n3\nPossible actions: 0 (rock), 1 (paper), 2 (scissors)."
    )
    assert env.step('{"player_0": "Rock", "player_1": "paper"}')[4]["rewards"] == {
        "player_0": -1.0,
        "player_1": 1.0,
    }
    # the number of rounds is a limit
    assert env.step('{"player_0": "0", "player_1": "2"}')[2:4] == (False, True)


@pytest.mark.adapters
def test_functions_may_write_and_read_instead() -> None:
    env = make(
        "connect_four_v3:env",
        observation_to_text=lambda agent, seen: f"{agent} sees {int(seen.sum())} discs",
        text_to_action=lambda agent, text: {"left": 0, "right": 6}[text] if text in ("left", "right") else int(text),
        opponents={"player_1": lambda view: "right"},
    )  # fmt: skip
    assert env.reset(seed=0)[0] == "You are player_0.\nplayer_0 sees 0 discs"
    assert env.step("left")[0] == "You are player_0.\nplayer_0 sees 2 discs"
    assert [env.step("left")[2] for _ in range(3)] == [False, False, True]
    assert env.earned["player_0"] == 1.0


@pytest.mark.adapters
def test_a_rendered_board_takes_the_place_of_numbers() -> None:
    with pytest.raises(
        ConfigError, match=r"of player_0 has no text form; give a function: env\.observation_to"
    ):
        make("chess_v6:env")
    env = make("chess_v6:env", render=True, show_actions=False)
    env.reset(seed=0)
    assert "P P P P P P P P" in env.view("player_0")


@pytest.mark.adapters
def test_copies_in_the_middle_of_a_game_go_their_own_ways() -> None:
    env = make("leduc_holdem_v4:env", on_illegal="random")
    env.reset(seed=3, options={"task": env.tasks[2]})
    env.step("1")
    twin = env.clone()
    assert twin.view(twin.players_to_move[0]) == env.view(env.players_to_move[0])
    for _ in range(6):
        if twin.step("?")[2]:
            break
    assert env.step("1")[3] is False


@pytest.mark.adapters
def test_every_sample_of_a_task_starts_alike() -> None:
    env = make("leduc_holdem_v4:env")

    def first(task: int, seed: int) -> str:
        env.reset(seed=seed, options={"task": env.tasks[task]})
        return env.view(env.players_to_move[0])

    assert len({first(1, seed) for seed in range(4)}) == 1 and len({first(task, 0) for task in range(8)}) > 1


@pytest.mark.adapters
@pytest.mark.parametrize(
    "game", ["tictactoe_v3:env", "connect_four_v3:env", "leduc_holdem_v4:env", "rps_v2:parallel_env"]
)
def test_it_keeps_the_contracts(game: str) -> None:
    check_env(make(game, max_turns=12))
    check_team(PlayersTeam(make(game, max_turns=12)))


@pytest.mark.adapters
@pytest.mark.parametrize(
    "game", ["tictactoe_v3:env", "connect_four_v3:env", "leduc_holdem_v4:env", "rps_v2:parallel_env"]
)
def test_pettingzoo_s_own_tests_pass_on_what_is_made_of_its_games(game: str) -> None:
    from pettingzoo.test import api_test, seed_test

    def play() -> Any:
        return as_aec_env(PlayersTeam(make(game, on_illegal="random", illegal_reward=0.0, max_turns=30)))

    api_test(play(), num_cycles=60)
    seed_test(play, num_cycles=60)


@pytest.mark.adapters
def test_pettingzoo_s_test_of_parallel_environments_passes() -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test
    from pettingzoo.utils.conversions import aec_to_parallel

    def play() -> Any:
        team = PlayersTeam(make("rps_v2:parallel_env", on_illegal="random", illegal_reward=0.0))
        return aec_to_parallel(as_aec_env(team, is_parallelizable=True))

    parallel_api_test(play(), num_cycles=60)
    parallel_seed_test(play, num_cycles=60)


@pytest.mark.adapters
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"make": "tictactoe"}, ConfigError, "make must be a function or its name as package.module:function"),
        ({"make": "no_such_module:env"}, ConfigError, "make=no_such_module:env cannot be imported: No module"),
        ({"make": dict}, ConfigError, "must make a PettingZoo environment, AECEnv or ParallelEnv, got dict"),
        ({"make": f"{CLASSIC}.rps_v2:env", "arguments": {"colour": 1}}, ConfigError, "failed with TypeError"),
        ({"make": f"{CLASSIC}.rps_v2:env", "player_names": ["x", "x"]}, ValueError, "must be 2 different names"),
        ({"make": f"{CLASSIC}.rps_v2:env", "action_names": ["x"]}, ValueError, "one name for each action of player_0"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PettingZooEnv(**settings)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r"install drmas_pl\[pettingzoo\]"):
        PettingZooEnv("x:y")


@pytest.mark.adapters
def test_a_mask_in_info_counts_too() -> None:
    from gymnasium.spaces import Discrete
    from pettingzoo import ParallelEnv

    class Masked(ParallelEnv):  # type: ignore[misc]
        possible_agents = ["x", "y"]

        def observation_space(self, agent: str) -> Any:
            return Discrete(2)

        def action_space(self, agent: str) -> Any:
            return Discrete(3)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents = list(self.possible_agents)
            return {"x": 0, "y": 1}, {"x": {"action_mask": np.array([0, 1, 1])}, "y": {}}

        def step(self, actions: Any) -> Any:
            self.agents = []
            ended = {"x": True, "y": True}
            return {"x": 0, "y": 0}, {"x": 1, "y": 0}, ended, {"x": False, "y": False}, {"x": {}, "y": {}}

    env = PettingZooEnv(Masked)
    env.reset(seed=0)
    assert env.view("x") == "You are x.\n0\nPossible actions: 1, 2."
    assert env.view("y") == "You are y.\n1\nAn action is a whole number from 0 to 2."
    assert env.step('{"x": "1", "y": "0"}')[4]["rewards"] == {"x": 1.0, "y": 0.0}
