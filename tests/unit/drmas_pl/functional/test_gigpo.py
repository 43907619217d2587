"""GiGPO: hand numbers, parts and anchors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drmas_pl.functional import anchor_ids, gigpo, gigpo_step, group_normalize, return_to_go

TASK = torch.zeros(4, dtype=torch.int64)
TRAJECTORY = torch.tensor([0, 0, 1, 1])
SCORE = torch.tensor([1.0, 1.0, 0.0, 0.0])
ANCHOR = anchor_ids(["q", "o1", "q", "o2"], TASK)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean_norm", [0.975, 0.5, -0.975, -0.5]),
        ("mean_std_norm", [1.414212, 0.707106, -1.414212, -0.707106]),
    ],
)
def test_hand_numbers(mode: Any, expected: list[float]) -> None:
    step_return = return_to_go(
        torch.tensor([0.0, 1.0, 0.0, 0.0]), TRAJECTORY, torch.tensor([0, 1, 0, 1]), gamma=0.95
    )
    assert step_return.tolist() == pytest.approx([0.95, 1.0, 0.0, 0.0])
    got = gigpo(SCORE, step_return, TASK, ANCHOR, trajectory=TRAJECTORY, mode=mode)
    assert got.tolist() == pytest.approx(expected, abs=1e-5)


def test_weight_and_unit_are_used() -> None:
    step_return = torch.tensor([0.95, 1.0, 0.0, 0.0])
    episode = group_normalize(SCORE, TASK, TASK, entry=TRAJECTORY)
    step = gigpo_step(step_return, TASK, ANCHOR)
    torch.testing.assert_close(
        gigpo(SCORE, step_return, TASK, ANCHOR, trajectory=TRAJECTORY, weight=0.0), episode
    )
    torch.testing.assert_close(
        gigpo(SCORE, step_return, TASK, ANCHOR, trajectory=TRAJECTORY, weight=2.0), episode + 2 * step
    )
    rows = gigpo(SCORE, step_return, TASK, ANCHOR, trajectory=None, weight=0.0)
    torch.testing.assert_close(rows, group_normalize(SCORE, TASK, TASK))


def test_the_same_state_of_two_tasks_is_two_groups() -> None:
    task = torch.tensor([0, 1])
    assert gigpo_step(torch.tensor([1.0, 0.0]), task, torch.tensor([0, 0])).tolist() == [0.0, 0.0]


def test_similar_anchors_join_within_a_task() -> None:
    task = torch.tensor([0, 0, 0, 1])
    anchors = ["you see a red door", "you see a red Door", "an empty hall", "you see a red door"]
    assert anchor_ids(anchors, task).tolist() == [0, 1, 2, 3]
    assert anchor_ids(anchors, task, threshold=0.9).tolist() == [0, 0, 1, 2]


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="anchors must have 4 entries like task, got 1"):
        anchor_ids(["a"], TASK)
    with pytest.raises(ValueError, match=r"threshold must be in \(0, 1\], got 0"):
        anchor_ids(["a"] * 4, TASK, threshold=0)
    with pytest.raises(ValueError, match="mode must be one of 'mean_norm', 'mean_std_norm', got 'std'"):
        gigpo_step(SCORE, TASK, ANCHOR, mode="std")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight must be in"):
        gigpo(SCORE, SCORE, TASK, ANCHOR, trajectory=None, weight=-1)
