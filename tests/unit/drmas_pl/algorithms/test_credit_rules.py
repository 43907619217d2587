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
