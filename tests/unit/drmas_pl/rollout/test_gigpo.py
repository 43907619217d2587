"""GiGPO on tables of turns."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.rollout.gigpo import Gigpo
from drmas_pl.rollout.table import TurnTable, build_table
from tests.helpers.tables import play
from tests.helpers.toy import Speaker

AGENTS = {"S": Speaker("S", on_truncated="mask"), "V": Speaker("V")}


def table(**more: Any) -> TurnTable:
    """Trajectory a is paid 1 in its second step, b nothing; their first states are equal, their second ones not."""
    first = {"step": [0, 1], "observation": ["the question", "room one"], **more}
    second = {**first, "observation": ["the question", "room two"]}
    return build_table([play("SS", [0.0, 1.0], **first), play("SS", [0.0, 0.0], sample=1, **second)], AGENTS)


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


def test_the_reward_of_a_turn_that_is_not_trained_reaches_the_turns_before_it() -> None:
    found = Gigpo(mode="mean_norm")(table(finish_reason=["stop", "length"]))
    assert found.tolist() == pytest.approx([0.975, 0.0, -0.975, 0.0])


def test_roles_are_compared_with_each_other_only_where_the_scope_says_so() -> None:
    played = [
        play("SV", [0.0, reward], sample=n, step=[0, 0], observation=["q", "q"])
        for n, reward in enumerate([1.0, 0.0])
    ]
    turns = build_table([*played, play("V", [0.5], sample=2, step=[0], observation=["q"])], AGENTS)
    together, apart = Gigpo(mode="mean_norm")(turns), Gigpo(mode="mean_norm", scope=("task", "agent"))(turns)
    assert together[0] == together[1] and apart.tolist() == pytest.approx([1.0, 1.0, -1.0, -1.0, 0.0])
    assert Gigpo(mode="mean_norm")(build_table(played[:1], AGENTS)).tolist() == [0.0, 0.0]


def test_an_empty_table_has_no_advantages() -> None:
    assert Gigpo()(build_table([], AGENTS)).tolist() == []


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
