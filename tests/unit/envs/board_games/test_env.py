"""Games of two players as an environment: scores, scripted opponents, what is shown to whom."""

from __future__ import annotations

import random
from typing import Any

import pytest

from drmas_pl.agents.single import SingleTeam, SolutionActor
from drmas_pl.envs.board_games import BoardGameEnv, make_tasks
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Task
from tests.helpers.audits import check_clones, check_contracts, play

EMPTY = Task("t", "game", metadata={"opening": []})
DEAL = Task("k", "game", metadata={"cards": ["K", "J"]})


def start(task: Task = EMPTY, **settings: Any) -> BoardGameEnv:
    settings = {"game": "kuhn" if task is DEAL else "tictactoe", **settings}
    env = BoardGameEnv([task], **settings)
    env.reset(seed=0)
    return env


def test_a_game_is_played_to_its_end() -> None:
    env = start()
    for move in "1425":
        assert env.step(move)[1:4] == (0.0, False, False)
    observation, reward, terminated, truncated, info = env.step(r"the last one: \boxed{3}")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert info["metrics"] == {"score": 1.0, "drawn": 0.0, "illegal_moves": 0.0, "game_moves": 5.0}
    assert observation == "X X X\nO O 6\n7 8 9" and env.scores == (1.0, 0.0)


def test_a_draw_is_half_a_win_and_no_success() -> None:
    env = start()
    for move in "12593784":
        assert env.step(move)[1:4] == (0.0, False, False)
    _, reward, terminated, _, info = env.step("6")
    assert (reward, terminated, info["success"], info["metrics"]["drawn"]) == (0.5, True, False, 1.0)


@pytest.mark.parametrize("text", ["1", "0", "10", "X", "", "1 2", "five", "__import__('os')"])
def test_a_move_against_the_rules_loses(text: str) -> None:
    env = start()
    env.step("1")
    observation, reward, terminated, _, info = env.step(text)
    # the second player made it, so that the first one wins
    assert (reward, terminated, env.scores, info["metrics"]["illegal_moves"]) == (1.0, True, (1.0, 0.0), 1.0)
    assert observation == "The second player made no legal move and loses."
    _, reward, _, _, info = start().step(text if text != "1" else "0")
    assert (reward, info["success"]) == (0.0, False)


def test_poker_scores_are_chips_moved_to_the_unit_interval() -> None:
    env = start(DEAL)
    env.step("bet")
    _, reward, _, _, info = env.step("call")
    assert (reward, info["success"], env.scores) == (1.0, True, (1.0, 0.0))
    env = start(DEAL)
    env.step("bet")
    assert env.step("fold")[1] == 0.75


def test_nothing_tells_a_card_to_the_team_as_a_whole() -> None:
    shown = []
    for cards in (["K", "J"], ["J", "Q"]):
        env = BoardGameEnv(game="kuhn")
        task = Task("k", "game", metadata={"cards": cards})
        shown.append([env.reset(options={"task": task})[0], env.step("check")[0], env.step("bet")[0]])
        assert (env.private(0), env.private(1)) == (f"Your card: {cards[0]}", f"Your card: {cards[1]}")
    assert shown[0] == shown[1]


def test_a_scripted_opponent_answers_and_its_rival_sees_the_own_card_alone() -> None:
    env = start(DEAL, opponent="optimal")
    shown = env.reset(seed=0)[0]
    assert "Your card: K" in shown and "Your card: J" not in shown
    # holding the jack the second player folds in equilibrium
    observation, reward, terminated, _, info = env.step("bet")
    assert (reward, terminated, info["metrics"]["game_moves"]) == (0.75, True, 2.0)
    assert "the second player: fold" in observation


def test_a_scripted_opponent_may_have_the_first_seat() -> None:
    env = start(DEAL, opponent="optimal", opponent_player="first")
    shown = env.reset(seed=0)[0]
    assert "Your card: J" in shown and "the first player: bet" in shown
    assert env.step("call")[1:3] == (0.0, True)
    env = start(opponent="random", opponent_player="first")
    assert env.current_player == 1 and env.state.public().count("X") == 1
    assert env.step("")[1] == 0.0


def test_the_seed_decides_what_a_random_opponent_does() -> None:
    def replies(seed: int) -> list[str]:
        env = BoardGameEnv([EMPTY], opponent="random")
        env.reset(seed=seed)
        return [env.step("1")[0], env.clone().step("2" if "2" in env.state.legal() else "3")[0]]

    assert replies(3) == replies(3)
    assert len({replies(seed)[0] for seed in range(20)}) > 3


@pytest.mark.parametrize("game", ["tictactoe", "kuhn"])
def test_random_play_against_a_perfect_player_gains_nothing(game: Any) -> None:
    source, scores, wins = random.Random(0), [], 0
    for number, player in enumerate(("first", "second") * 100):
        env = BoardGameEnv(
            make_tasks(game, size=40, seed=1), game=game, opponent="optimal", opponent_player=player
        )
        env.reset(seed=number)
        while True:
            _, reward, terminated, _, info = env.step(source.choice(env.state.legal()))
            if terminated:
                break
        scores.append(reward)
        wins += info["success"]
    assert sum(scores) / len(scores) < 0.48
    if game == "tictactoe":
        assert sum(scores) / len(scores) < 0.35


@pytest.mark.parametrize("game", ["tictactoe", "kuhn"])
@pytest.mark.parametrize("player", ["first", "second"])
def test_perfect_play_beats_random_play(game: Any, player: Any) -> None:
    scores = []
    for number in range(150):
        env = BoardGameEnv(
            make_tasks(game, size=30, opening_moves=0), game=game, opponent="random", opponent_player=player
        )
        env.reset(seed=number)
        terminated = False
        while not terminated:
            policy = env.state.optimal()
            move = env.np_random.choice(list(policy), p=list(policy.values()))
            _, reward, terminated, _, _ = env.step(str(move))
        scores.append(reward)
    assert sum(scores) / len(scores) > 0.52
    if game == "tictactoe":
        assert min(scores) >= 0.5


@pytest.mark.parametrize("task", [EMPTY, DEAL])
@pytest.mark.parametrize("template", sorted(SolutionActor.templates))
def test_idle_play_and_copied_prompts_earn_nothing(task: Task, template: str) -> None:
    settings = {"opponent": "random", "game": "kuhn" if task is DEAL else "tictactoe"}
    team = SingleTeam(BoardGameEnv([task], **settings))  # type: ignore[arg-type]
    question = team.reset(seed=0)[0]
    prompt = SolutionActor.templates[template].messages(team.observe("actor"))[0]["content"]
    for text in ("", question, prompt, r"\boxed{}"):
        episode = play(BoardGameEnv([task], **settings), task, lambda turn, text=text: text)  # type: ignore[arg-type,misc]
        assert (episode.reward, episode.success, episode.terminated) == (0.0, False, True)


def test_openings_are_disjoint_and_settings_count() -> None:
    splits = {
        split: make_tasks(split=split, size=15, opening_moves=3) for split in ("train", "validation", "test")
    }  # type: ignore[arg-type]
    assert len({task.question for tasks in splits.values() for task in tasks}) == 45
    assert {len(task.metadata["opening"]) for task in splits["train"]} >= {2, 3}
    assert all(task.metadata["opening"] == [] for task in make_tasks(size=3, opening_moves=0))
    assert all(len(task.metadata["opening"]) <= 1 for task in BoardGameEnv(size=5, opening_moves=1).tasks)
    deals = {tuple(task.metadata["cards"]) for task in make_tasks("kuhn", size=60)}
    assert len(deals) == 6 and len(BoardGameEnv(game="kuhn", size=3).tasks) == 3
    assert make_tasks("kuhn", size=9) != make_tasks("kuhn", size=9, seed=1)
    assert BoardGameEnv([EMPTY], show_rules=False).reset()[0].startswith("1 2 3\n4 5 6\n7 8 9\nThe first")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"game": "chess"}, "game must be one of tictactoe, kuhn, got 'chess'"),
        ({"opponent": "human"}, "opponent must be one of None, random, optimal"),
        ({"opponent_player": "third"}, "opponent_player must be one of first, second"),
        ({"render_mode": "human"}, "render_mode must be one of None, ansi, rgb_array"),
        ({"tasks": None, "game": "kuhn", "size": 0}, "size must be at least 1"),
        ({"tasks": None, "opening_moves": 9}, r"opening_moves must be in \[0, 4\]"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoardGameEnv(**{"tasks": [EMPTY], **settings})


@pytest.mark.parametrize(
    ("game", "metadata", "message"),
    [
        ("tictactoe", {}, r"needs metadata\['opening'\]"),
        ("tictactoe", {"opening": ["1", "1"]}, "must be legal moves"),
        ("kuhn", {"cards": ["K", "K"]}, "must be two different cards"),
        ("kuhn", {"cards": "KQ"}, r"needs metadata\['cards'\]"),
    ],
)
def test_foreign_tasks_are_refused(game: Any, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoardGameEnv(game=game).reset(options={"task": Task("x", "q", metadata=metadata)})


def test_renders_for_onlookers() -> None:
    assert start().render() is None
    assert start(render_mode="ansi").render() == "1 2 3\n4 5 6\n7 8 9"
    assert "first: Your card: K\nsecond: Your card: J" in start(DEAL, render_mode="ansi").render()
    assert start(DEAL, render_mode="rgb_array").render().shape == (16, 32, 3)
    with pytest.raises(RuntimeError, match="before reset"):
        BoardGameEnv([EMPTY], render_mode="ansi").render()


def test_keeps_the_contracts() -> None:
    for opponent in (None, "random", "optimal"):
        check_contracts("drmas/TicTacToe-v0", list("159263487"), opponent=opponent, opening_moves=0)
        check_contracts("drmas/Kuhn-v0", ["check", "bet", "call"], opponent=opponent)
    check_clones(start(opponent="random"), EMPTY, ["1", "hm"])
    check_clones(start(DEAL), DEAL, ["check", "bet", "call"])
    check_team(SingleTeam(start(opponent="random")))
