"""GiGPO on tables of turns."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from drmas_pl.algorithms.credit_rules import CreditRule, ReturnToGo, TeamFuture, TeamReward, ZeroSum
from drmas_pl.algorithms.gigpo_estimator import Gigpo
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.parsing import Parsed
from tests.helpers.tables import play
from tests.helpers.toy import Speaker

AGENTS = {"S": Speaker("S", on_truncated="mask", invalid_penalty=0.5), "V": Speaker("V")}


def table(credit: CreditRule | None = None, *, other: dict[str, Any] | None = None, **more: Any) -> TurnBatch:
    """Trajectory a is paid 1 in its second step, b nothing; their first states are equal, their second ones not."""
    first = {"step": [0, 1], "observation": ["the question", "room one"], **more}
    second = {**first, "observation": ["the question", "room two"], **(other or {})}
    played = [play("SS", [0.0, 1.0], **first), play("SS", [0.0, 0.0], sample=1, **second)]
    return build_turn_batch(played, AGENTS, credit=credit)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mode": "mean_norm"}, [0.975, 0.5, -0.975, -0.5]),
        ({}, [1.414212, 0.707106, -1.414212, -0.707106]),
        # 0.5/(0.70711 + 1), and 0.475/(0.67175 + 1) on top in the common state
        ({"eps": 1.0}, [0.577025, 0.292893, -0.577025, -0.292893]),
        ({"mode": "mean_norm", "weight": 0.0}, [0.5, 0.5, -0.5, -0.5]),
        ({"mode": "mean_norm", "gamma": 0.5}, [0.75, 0.5, -0.75, -0.5]),
        # the two rooms count as one state from three quarters of equal text on
        ({"mode": "mean_norm", "similarity": 0.6}, [0.975, 1.0, -0.975, -1.0]),
        # every prompt is the same, so both turns of both trajectories share one state
        (
            {"mode": "mean_norm", "anchor": "prompt"},
            [0.5 + 0.95 - 0.4875, 0.5 + 1 - 0.4875, -0.5 - 0.4875, -0.5 - 0.4875],
        ),
    ],
    ids=str,
)
def test_reference_numbers(settings: dict[str, Any], expected: list[float]) -> None:
    assert Gigpo(**settings)(table()).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        (TeamReward(alpha=0.0), [0.0, 0.0, 0.0, 0.0]),
        (TeamReward(alpha=0.5), [0.4875, 0.25, -0.4875, -0.25]),
        (TeamReward(alpha=2.0), [1.95, 1.0, -1.95, -1.0]),
        # returns .5 and 1 against 0: the episode is worth their mean, the common first step .5 with the rule's own discount
        (ReturnToGo(gamma=0.5), [0.625, 0.375, -0.625, -0.375]),
        # (0 + .5 * 1) / 1.5 and 1 against 0
        (TeamFuture(gamma=0.5), [1 / 3 + 1 / 6, 1 / 3, -1 / 3 - 1 / 6, -1 / 3]),
    ],
    ids=repr,
)
def test_both_parts_follow_the_credit_rule(credit: CreditRule, expected: list[float]) -> None:
    assert Gigpo(mode="mean_norm")(table(credit)).tolist() == pytest.approx(expected, abs=1e-5)


def test_local_rewards_count_in_full_whatever_the_share_of_the_team() -> None:
    found = table(TeamReward(alpha=0.0), local_reward=[0.4, 0.0], other={"local_reward": [0.0, 0.2]})
    # episodes .2 against .1; in the common state .4 against 0
    assert Gigpo(mode="mean_norm")(found).tolist() == pytest.approx([0.25, 0.05, -0.25, -0.05])


def test_a_penalty_is_the_turns_own_and_not_what_credit_leaves_of_the_reward() -> None:
    broken = {"parsed": [Parsed("valid"), Parsed("malformed")]}
    found = Gigpo(mode="mean_norm")(table(TeamReward(alpha=0.0), other=broken))
    assert found.tolist() == pytest.approx([0.125, 0.125, -0.125, -0.125])
    early = {"parsed": [Parsed("malformed"), Parsed("valid")]}
    found = Gigpo(mode="mean_norm")(table(TeamReward(alpha=0.0), other=early))
    # the state of the malformed turn is common: 0 against -.5 in it
    assert found.tolist() == pytest.approx([0.375, 0.125, -0.375, -0.125])


def test_agents_that_move_at_once_are_compared_by_what_each_was_paid() -> None:
    """Both see one state and act in one environment step; the players' payoffs come in the second of two steps."""
    places = {"step": [0, 0, 1, 1], "move": [0, 0, 1, 1], "observation": ["q", "q", "r", "r"]}
    played = [
        play("SVSV", [0.0] * 4, sample=n, own_reward=[0, 0, s, -s], paid={"S": s, "V": -s}, **places)
        for n, s in enumerate([1.0, -1.0])
    ]
    found = Gigpo(mode="mean_norm", scope=("task", "agent"), gamma=0.5)(build_turn_batch(played, AGENTS))
    # payoffs stand on the turns of the second step, the agents' latest; episodes 1 against -1, and in the second state the same again
    assert found.tolist() == pytest.approx([1.5, -1.5, 2.0, -2.0, -1.5, 1.5, -2.0, 2.0])


@pytest.mark.parametrize("alpha", [0.05, 1.0, 3.0])
def test_a_won_episode_is_never_worth_less_than_a_lost_one(alpha: float) -> None:
    rooms = {"step": [0, 1, 2, 3], "observation": ["a", "b", "c", "d"]}
    played = [play("SSSS", [0.0, 0.0, 0.0, won], sample=n, **rooms) for n, won in enumerate([1.0, 0.0])]
    found = Gigpo()(build_turn_batch(played, AGENTS, credit=TeamReward(alpha=alpha)))
    assert found.tolist() == pytest.approx([1.41421] * 4 + [-1.41421] * 4, abs=1e-4)


def test_a_critic_that_plays_against_the_team_does_so_in_both_parts() -> None:
    places = {"step": [0, 1], "observation": ["q", "r"]}
    played = [play("VS", [0.0, won], sample=n, **places) for n, won in enumerate([1.0, 0.0])]
    found = Gigpo(mode="mean_norm", scope=("task", "agent"))(
        build_turn_batch(played, AGENTS, credit=ZeroSum(["V"]))
    )
    # in their first step critics are left 1 - .95 of a win and 1 of a loss
    assert found.tolist() == pytest.approx([-0.975, 1.0, 0.975, -1.0])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_matches_a_slow_loop(alpha: float, seed: int) -> None:
    draw = random.Random(seed)
    gamma, penalty = 0.9, 0.5
    episodes = []
    for _ in range(6):
        length = draw.randint(1, 4)
        episodes.append(
            [
                (
                    draw.choice("ab"),
                    draw.choice([0.0, 0.5, 1.0]),
                    draw.choice([0.0, 0.25]),
                    draw.random() < 0.3,
                )
                for _ in range(length)
            ]
        )
    played = [
        play(
            "S" * len(turns),
            [reward for _, reward, _, _ in turns],
            sample=sample,
            step=list(range(len(turns))),
            observation=[room for room, _, _, _ in turns],
            local_reward=[local for _, _, local, _ in turns],
            parsed=[Parsed("malformed" if bad else "valid") for _, _, _, bad in turns],
        )
        for sample, turns in enumerate(episodes)
    ]
    means, returns, states = [], [], []
    for turns in episodes:
        total = sum(reward for _, reward, _, _ in turns)
        means.append(sum(alpha * total + local - penalty * bad for _, _, local, bad in turns) / len(turns))
        for place, (room, _, local, bad) in enumerate(turns):
            later = sum(gamma**ahead * turns[place + ahead][1] for ahead in range(len(turns) - place))
            returns.append(alpha * later + local - penalty * bad)
            states.append(room)
    centre = sum(means) / len(means)
    expected = []
    for turns, mean in zip(episodes, means, strict=True):
        for _ in turns:
            row = len(expected)
            same = [value for value, room in zip(returns, states, strict=True) if room == states[row]]
            step = returns[row] - sum(same) / len(same) if len(same) > 1 else 0.0
            expected.append(mean - centre + step)
    found = Gigpo(mode="mean_norm", gamma=gamma)(
        build_turn_batch(played, AGENTS, credit=TeamReward(alpha=alpha))
    )
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_the_reward_of_a_turn_that_is_not_trained_reaches_the_turns_before_it() -> None:
    found = Gigpo(mode="mean_norm")(table(finish_reason=["stop", "length"]))
    assert found.tolist() == pytest.approx([0.975, 0.0, -0.975, 0.0])


def test_roles_are_compared_with_each_other_only_where_the_scope_says_so() -> None:
    played = [
        play("SV", [0.0, reward], sample=n, step=[0, 0], observation=["q", "q"])
        for n, reward in enumerate([1.0, 0.0])
    ]
    turns = build_turn_batch([*played, play("V", [0.5], sample=2, step=[0], observation=["q"])], AGENTS)
    together, apart = Gigpo(mode="mean_norm")(turns), Gigpo(mode="mean_norm", scope=("task", "agent"))(turns)
    assert together[0] == together[1] and apart.tolist() == pytest.approx([1.0, 1.0, -1.0, -1.0, 0.0])
    assert Gigpo(mode="mean_norm")(build_turn_batch(played[:1], AGENTS)).tolist() == [0.0, 0.0]


def test_an_empty_table_has_no_advantages() -> None:
    assert Gigpo()(build_turn_batch([], AGENTS)).tolist() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": -1.0}, "weight must be"),
        ({"gamma": 2.0}, "gamma must be"),
        ({"mode": "mean"}, "mode must be"),
        ({"anchor": "text"}, "anchor must be"),
        ({"scope": ("room",)}, "a scope needs a list of names"),
        ({"similarity": 0.0}, r"similarity must be in \(0, 1\], and 1 for anchor=prompt, got 0.0"),
        ({"similarity": 0.9, "anchor": "prompt"}, "similarity must be in"),
    ],
)
def test_wrong_settings_say_what_is_right(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gigpo(**settings)
