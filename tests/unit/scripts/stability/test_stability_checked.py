"""The team with a checker: who is called, and what the backup is paid."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.envs.math import MathEnv
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Task
from scripts.stability.checked import CheckedTeam
from tests.helpers.toy import EvenEnv

TASK = Task("t", "1 + 1", ("2",))
RIGHT, WRONG, UNUSABLE = r"1 + 1 = 2 \boxed{2}", r"1 + 1 = 3 \boxed{3}", "no idea"


def play(
    *words: str, **settings: float
) -> tuple[CheckedTeam, list[tuple[str, float, bool, bool, dict[str, Any]]]]:
    team = CheckedTeam(MathEnv([TASK]), **settings)
    team.reset(options={"task": TASK})
    return team, [team.step(word) for word in words]


def test_the_team_keeps_the_contract() -> None:
    check_team(CheckedTeam(MathEnv([TASK])))


def test_a_right_attempt_ends_the_task() -> None:
    team, steps = play(RIGHT)
    _, reward, terminated, _, info = steps[0]
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert info["metrics"]["first_attempt_correct"] == 1.0
    assert team.agent_selection is None


@pytest.mark.parametrize("first", [WRONG, UNUSABLE])
def test_a_wrong_or_unusable_attempt_calls_the_backup_who_starts_afresh(first: str) -> None:
    team, steps = play(first)
    assert (steps[0][1], team.agent_selection) == (0.0, "backup")
    assert team.observe("backup").history == ()
    assert steps[0][4]["metrics"]["first_attempt_correct"] == 0.0


@pytest.mark.parametrize(
    ("word", "reward", "local"), [(RIGHT, 1.0, 6.0), (WRONG, 0.0, -3.0), (UNUSABLE, 0.0, -3.0)]
)
def test_the_backup_pays_its_price_and_earns_its_bonus(word: str, reward: float, local: float) -> None:
    _, steps = play(WRONG, word, price=3.0, bonus=9.0)
    _, gained, terminated, _, info = steps[1]
    assert (gained, terminated, info["local_reward"], info["success"]) == (reward, True, local, bool(reward))
    assert info["metrics"]["backup_correct"] == reward


def test_what_the_team_refuses() -> None:
    with pytest.raises(ValueError, match=r"must be a MathEnv.*got EvenEnv"):
        CheckedTeam(EvenEnv())
    with pytest.raises(ValueError, match="price and bonus must be at least 0, got -1 and 0"):
        CheckedTeam(MathEnv([TASK]), price=-1)
