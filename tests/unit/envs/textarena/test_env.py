"""TextArena's games: its own rewards, its own rules for invalid moves, seeds, and players that are scripted."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from drmas_pl.agents.players import PlayersTeam
from drmas_pl.envs.textarena import TextArenaEnv
from drmas_pl.envs.textarena.env import listed_actions
from drmas_pl.errors import ConfigError
from drmas_pl.testing.conformance import check_env, check_team

GAMES = ("TicTacToe-v0", "KuhnPoker-v0", "ConnectFour-v0", "PigDice-v0-short", "GuessTheNumber-v0")
pytestmark = pytest.mark.filterwarnings("ignore")


def choose(view: str, source: random.Random) -> str:
    """Say one of the actions that are listed, now and then one that the rules forbid."""
    actions = [*(listed_actions(view) or ["[0]"]), f"[{source.randrange(20)}]"]
    return source.choice(actions)


def by_library(game: str, seed: int) -> dict[int, float]:
    """Play a game with the library alone."""
    import textarena

    env = textarena.make(game)
    players = 1 if game.startswith("Guess") else 2
    env.reset(num_players=players, seed=seed)
    source, done, views = random.Random(seed), False, {}
    while not done:
        player, views[player] = env.get_observation()
        done, _ = env.step(action=choose(views[player], source))
    return dict(env.close()[0])


def by_adapter(env: TextArenaEnv, seed: int) -> dict[int, float]:
    env.reset(options={"task": env.tasks[seed]})
    source = random.Random(seed)
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(choose(env.view(env.players_to_move[0]), source))
        over = terminated or truncated
    return {int(name.rpartition("_")[2]): reward for name, reward in env.earned.items()}


@pytest.mark.adapters
@pytest.mark.parametrize("game", GAMES)
def test_a_hundred_random_episodes_are_paid_as_the_library_pays_them(game: str) -> None:
    env = TextArenaEnv(game, episodes=100, max_turns=500)
    found = [by_adapter(env, seed) for seed in range(100)]
    assert found == [by_library(game, seed) for seed in range(100)]
    assert len({tuple(rewards.items()) for rewards in found}) > 1


@pytest.mark.adapters
def test_games_that_are_played_side_by_side_draw_from_generators_of_their_own() -> None:
    env = TextArenaEnv("PigDice-v0-short")

    def start() -> TextArenaEnv:
        game = env.clone()
        game.reset(options={"task": env.tasks[1]})
        return game

    alone = start()
    state = random.getstate()
    expected = [alone.step("[roll]") and alone.view(alone.players_to_move[0]) for _ in range(6)]
    assert random.getstate() == state
    first, second = start(), start()
    mixed = []
    for _ in range(6):
        first.step("[roll]")
        second.step("[roll]")
        mixed.append((first.view(first.players_to_move[0]), second.view(second.players_to_move[0])))
    assert mixed == [(view, view) for view in expected]


@pytest.mark.adapters
def test_the_game_answers_invalid_moves_by_its_rules() -> None:
    env = TextArenaEnv("TicTacToe-v0")
    env.reset(seed=0)
    assert env.step("[9]")[2] is False and env.players_to_move == ("player_0",)
    assert "invalid move" in env.view("player_0")
    _, _, terminated, _, info = env.step("no move")
    assert terminated and info["rewards"] == {"player_0": -1.0, "player_1": 1.0}


@pytest.mark.adapters
@pytest.mark.parametrize("player", ["player_0", "player_1"])
def test_an_optimal_player_never_loses(player: str) -> None:
    other = "player_1" if player == "player_0" else "player_0"
    env = TextArenaEnv("TicTacToe-v0", opponents={other: "optimal"}, episodes=60)
    source = random.Random(1)
    rewards = []
    for number, task in enumerate(env.tasks):
        view = env.reset(seed=number, options={"task": task})[0]
        over = False
        while not over:
            view, reward, terminated, truncated, info = env.step(source.choice(listed_actions(view)))
            over = terminated or truncated
        rewards.append(reward)
        assert not info["success"]
    assert set(rewards) <= {-1.0, 0.0} and sum(rewards) < -30


@pytest.mark.adapters
def test_a_random_player_keeps_to_what_is_listed() -> None:
    env = TextArenaEnv("TicTacToe-v0", opponents={"player_1": "random"}, episodes=20)
    for number, task in enumerate(env.tasks):
        view = env.reset(seed=number, options={"task": task})[0]
        over = False
        while not over:
            view, _, terminated, _, _ = env.step(listed_actions(view)[0])
            over = terminated
        assert not any(told["invalid_move"] for told in env.game.state.game_info.values())


@pytest.mark.adapters
def test_the_number_of_players_is_found_or_chosen() -> None:
    assert TextArenaEnv("GuessTheNumber-v0").players == ("player_0",)
    assert len(TextArenaEnv("ThreePlayerTicTacToe-v0").players) == 3
    with pytest.raises(ConfigError, match="the game cannot be set up for 3 players: AssertionError"):
        TextArenaEnv("TicTacToe-v0", num_players=3)


@pytest.mark.adapters
@pytest.mark.parametrize("game", GAMES)
def test_it_keeps_the_contracts(game: str) -> None:
    check_env(TextArenaEnv(game, max_turns=12))
    check_team(PlayersTeam(TextArenaEnv(game, max_turns=12)))


@pytest.mark.adapters
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"id": "Nope-v0"}, ConfigError, "TextArena cannot make 'Nope-v0'"),
        ({"id": "TicTacToe-v0", "arguments": {"colour": 1}}, ConfigError, "TextArena cannot make 'TicTacToe-v0'"),
        ({"id": "PigDice-v0", "opponents": {"player_1": "optimal"}}, ValueError, "for TicTacToe alone, not for PigDice-v0"),
        ({"id": "TicTacToe-v0", "opponents": {"player_1": "good"}}, ValueError, "must be 'random' or 'optimal', or"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TextArenaEnv(**settings)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ConfigError, match=r"install drmas_pl\[textarena\]"):
        TextArenaEnv("TicTacToe-v0")
