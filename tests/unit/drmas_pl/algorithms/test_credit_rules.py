"""What each turn is credited with, against numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.algorithms.credit_rules import CreditRule, ReturnToGo, TeamFuture, TeamReward, ZeroSum
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.parsing import Parsed
from tests.helpers.tables import play
from tests.helpers.toy import Speaker

AGENTS = {"S": Speaker("S"), "V": Speaker("V", invalid_penalty=0.5)}
# the environment pays 1 in its first step and 2 in its second; the verifier earns something of its own
EPISODE = {"step": [0, 0, 1, 1], "local_reward": [0.0, 0.25, 0.0, 0.5]}


def scores(rule: CreditRule | None, **changes: Any) -> list[float]:
    trajectory = play("SVSV", [0.0, 1.0, 0.0, 2.0], **{**EPISODE, **changes})
    return build_turn_batch([trajectory], AGENTS, credit=rule).score.tolist()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (None, [3.0, 3.25, 3.0, 3.5]),
        (TeamReward(), [3.0, 3.25, 3.0, 3.5]),
        (TeamReward(alpha=0.5), [1.5, 1.75, 1.5, 2.0]),
        (TeamReward(alpha=0.5, alpha_by_agent={"V": 2.0}), [1.5, 6.25, 1.5, 6.5]),
        (ReturnToGo(), [3.0, 3.75, 2.0, 2.5]),
        # S: 0.5·1 + 0.125·2, then 0.5·2; V: 1 + 0.25·2 + local 0.25 + 0.25·0.5, then 2 + 0.5
        (ReturnToGo(gamma=0.5), [0.75, 1.875, 1.0, 2.5]),
        # 1 and 1.25 in the first step, 2 and 2.5 in the second, whose mean is 2.25; (1 + 0.5·2.25)/1.5 and (1.25 + 0.5·2.25)/1.5
        (TeamFuture(gamma=0.5), [17 / 12, 19 / 12, 2.0, 2.5]),
        (TeamFuture(gamma=0.0), [1.0, 1.25, 2.0, 2.5]),
    ],
    ids=repr,
)
def test_rules_by_hand(rule: CreditRule | None, expected: list[float]) -> None:
    assert scores(rule) == pytest.approx(expected)


# S and V move at once, twice; the environment pays the team 1 and 2, and S 4 in the first move, V 8 in the second
AT_ONCE = {
    "step": [0, 0, 1, 1],
    "move": [0, 0, 1, 1],
    "own_reward": [4.0, 0.0, 0.0, 8.0],
    "paid": {"S": 4.0, "V": 8.0},
    "local_reward": [0.0] * 4,
}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (TeamReward(), [7.0, 11.0, 7.0, 11.0]),
        (TeamReward(alpha=0.5), [5.5, 9.5, 5.5, 9.5]),
        (ReturnToGo(), [7.0, 11.0, 2.0, 10.0]),
        # both of a move are equally near to what comes later: 1 + 0.5·2, and for V half of its 8
        (ReturnToGo(gamma=0.5), [6.0, 6.0, 2.0, 10.0]),
        # 5 and 1 in the first step; 2 and 10 in the second, whose mean is 6; (5 + 0.5·6)/1.5 and (1 + 0.5·6)/1.5
        (TeamFuture(gamma=0.5), [8 / 1.5, 4 / 1.5, 2.0, 10.0]),
        # who is paid by the environment itself gets that; there is nothing to split
        (ZeroSum(["V"]), [4.0, 8.0, 4.0, 8.0]),
    ],
    ids=repr,
)
def test_rules_see_what_single_agents_were_paid(rule: CreditRule, expected: list[float]) -> None:
    assert scores(rule, **AT_ONCE) == pytest.approx(expected)


def test_moves_at_once_are_as_far_from_the_reward_as_one_move() -> None:
    apart = {**AT_ONCE, "move": [0, 1, 2, 3]}
    assert scores(ReturnToGo(gamma=0.5), **apart) != pytest.approx(scores(ReturnToGo(gamma=0.5), **AT_ONCE))
    # in recordings without moves each turn is one
    assert scores(ReturnToGo(gamma=0.5), **{**AT_ONCE, "move": [None] * 4}) == scores(
        ReturnToGo(gamma=0.5), **apart
    )


def test_players_that_the_environment_pays_may_draw_or_have_rewards_outside_the_unit_interval() -> None:
    draw, win = (
        play("SV", [0.0, 0.0], move=[0, 0], own_reward=[s, -s], paid={"S": s, "V": -s}, sample=sample)
        for sample, s in enumerate((0.0, 3.0))
    )
    split = play("SV", [0.0, 0.25], sample=2)
    table = build_turn_batch([draw, win, split], AGENTS, credit=ZeroSum(["V"]))
    assert table.score.tolist() == [0.0, 0.0, 3.0, -3.0, 0.25, 0.75]


def test_a_speaker_keeps_its_own_score_of_the_step_and_shares_later_ones() -> None:
    own = {"step": [0, 0, 1, 1], "local_reward": [1.0, 0.0, 0.0, 1.0]}
    table = build_turn_batch([play("SVSV", [0.0] * 4, **own)], AGENTS, credit=TeamFuture(gamma=0.5))
    # (1 + 0.5·0.5)/1.5 and (0 + 0.5·0.5)/1.5; nothing comes after the second step
    assert table.score.tolist() == pytest.approx([0.8333333, 0.1666667, 0.0, 1.0])


def test_critics_get_what_the_others_do_not() -> None:
    win, loss = play("SV", [0.0, 1.0]), play("SV", [0.0, 0.25], sample=1, local_reward=[0.0, 0.125])
    assert build_turn_batch([win, loss], AGENTS, credit=ZeroSum(["V"])).score.tolist() == [
        1.0,
        0.0,
        0.25,
        0.875,
    ]


def test_the_penalty_of_an_unusable_turn_comes_off_every_rule() -> None:
    parsed = [Parsed("valid"), Parsed("malformed"), Parsed("valid"), Parsed("valid")]
    for rule in (TeamReward(), ReturnToGo(), TeamFuture()):
        assert [a - b for a, b in zip(scores(rule), scores(rule, parsed=parsed), strict=True)] == [
            0.0,
            0.5,
            0.0,
            0.0,
        ]


def test_the_reward_of_a_turn_that_is_not_trained_still_counts_for_the_others() -> None:
    agents = {"S": Speaker("S"), "V": Speaker("V", on_truncated="mask")}
    trajectory = play("SV", [0.0, 1.0], finish_reason=["stop", "length"])
    table = build_turn_batch([trajectory], agents, credit=ReturnToGo())
    assert table.score[0] == 1.0 and table.trained.tolist() == [True, False]


@pytest.mark.parametrize("rule", [TeamReward(), ReturnToGo(), TeamFuture(), ZeroSum(["V"])], ids=repr)
def test_nothing_played_is_credited_with_nothing(rule: CreditRule) -> None:
    assert build_turn_batch([], AGENTS, credit=rule).score.tolist() == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TeamReward(alpha=-1.0), "alpha must be"),
        (lambda: TeamReward(alpha_by_agent={"V": -1.0}), "alpha_by_agent.V must be"),
        (lambda: ReturnToGo(gamma=1.5), "gamma must be"),
        (lambda: TeamFuture(gamma=-0.1), "gamma must be"),
        (lambda: ZeroSum([]), r"critics must list at least one agent, got \[\]; write"),
        (lambda: ZeroSum("V"), "critics must list at least one agent, got 'V'; write"),
        (lambda: scores(ZeroSum(["W"])), r"critics must name agents out of \['S', 'V'\], got \['W'\]"),
        (lambda: scores(ZeroSum(["V"])), r"score must be in \[0, 1\]"),
    ],
)
def test_wrong_settings_say_what_is_right(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
