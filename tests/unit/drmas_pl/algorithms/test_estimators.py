"""The group normaliser on tables of turns, against numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.parsing import Parsed
from drmas_pl.types import Task, Trajectory
from tests.helpers.toy import Speaker, make_tasks, make_turn

TASK = make_tasks(1)[0]
AGENTS = {"S": Speaker("S"), "V": Speaker("V", invalid_penalty=0.1)}


def play(sample: int, speakers: str, reward: float, *, task: Task = TASK, invalid: int = -1) -> Trajectory:
    """A trajectory of one turn per letter; ``invalid`` is the place of a malformed one."""
    turns = [
        make_turn(
            name,
            parsed=Parsed("malformed" if place == invalid else "valid"),
            agent_index=speakers[:place].count(name),
        )
        for place, name in enumerate(speakers)
    ]
    return Trajectory(task, sample, tuple(turns), reward, "terminated")


@pytest.fixture
def table() -> TurnBatch:
    """S/t1 1, V/t1 1, S/t1 1, S/t2 0, V/t2 0, S/t2 0, S/t3 1, V/t3 1, S/t4 0, V/t4 -0.1."""
    return build_turn_batch(
        [play(1, "SVS", 1.0), play(2, "SVS", 0.0), play(3, "SV", 1.0), play(4, "SV", 0.0, invalid=1)], AGENTS
    )


def test_dr_mas_normalises_each_agent_on_its_own(table: TurnBatch) -> None:
    s, v = 0.912869, (0.864067, -0.781775, 0.864067, -0.946359)
    expected = [s, v[0], s, -s, v[1], -s, s, v[2], -s, v[3]]
    assert GroupNormalizer()(table).tolist() == pytest.approx(expected, abs=1e-5)


def test_grpo_normalises_trajectories_of_a_task(table: TurnBatch) -> None:
    grpo = GroupNormalizer(unit="trajectory", mean_scope=("task",), std_scope=("task",))
    expected = [0.865509] * 3 + [-0.823289] * 3 + [0.865509] * 2 + [-0.907729] * 2
    assert grpo(table).tolist() == pytest.approx(expected, abs=1e-5)


def test_statistics_exclude_failed_trajectories() -> None:
    good = [play(0, "S", 1.0), play(1, "S", 0.0), play(2, "S", 0.0), play(3, "S", 0.0)]
    failed = Trajectory(TASK, 4, (make_turn("S"),), 0.0, "failed", cause="down")
    assert GroupNormalizer()(build_turn_batch([*good, failed], AGENTS)).tolist() == pytest.approx(
        [1.5, -0.5, -0.5, -0.5], abs=1e-5
    )


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "trajectory"},
        {"mean_scope": ("task",)},
        {"std_scope": ("task",)},
        {"std_scope": None},
        {"ddof": 0},
        {"eps": 0.1},
        {"min_std": 2.0},
        {"clip": 0.5},
        {"singleton": "raw"},
        {"singleton": "agent_batch"},
    ],
    ids=str,
)
def test_every_setting_changes_something(table: TurnBatch, change: dict[str, Any]) -> None:
    alone = build_turn_batch(
        [*[play(i, "SVS", i % 2, invalid=i) for i in range(4)], play(9, "SV", 1.0, task=Task("alone", "?"))],
        AGENTS,
    )
    assert not torch.allclose(GroupNormalizer(**change)(alone), GroupNormalizer()(alone))


def test_a_group_without_signal_is_exactly_zero() -> None:
    assert (
        GroupNormalizer()(build_turn_batch([play(i, "SV", 0.9) for i in range(8)], AGENTS)).tolist()
        == [0.0] * 16
    )


def test_an_empty_table_has_no_advantages() -> None:
    assert GroupNormalizer()(build_turn_batch([], AGENTS)).tolist() == []


def test_scopes_from_a_configuration_become_tuples() -> None:
    assert GroupNormalizer(mean_scope=["task"]).mean_scope == ("task",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "token"}, "unit must be turn or trajectory, got 'token'"),
        ({"mean_scope": "task"}, "a scope needs a list of names out of .*, got 'task'; write"),
        ({"std_scope": ()}, r"a scope needs a list of names out of .*, got \(\)"),
        ({"mean_scope": ("tasks",)}, r"a scope needs a list of names out of .*, got \('tasks',\)"),
        ({"ddof": 2}, "ddof must be 0"),
        ({"eps": -1.0}, "eps"),
        ({"clip": 0.0}, "clip must be positive or None, got 0.0"),
        ({"singleton": "one"}, "singleton"),
    ],
)
def test_wrong_settings_are_named_at_construction(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupNormalizer(**settings)
