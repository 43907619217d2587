"""What a run writes down of its trajectories: phase, mode, iteration, advantages, and prompts on request."""

from __future__ import annotations

import torch

from drmas_pl.algorithms.estimators import TokenAdvantages
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.trainer.run_directory import with_advantages
from drmas_pl.types import Trajectory
from tests.helpers.toy import Speaker, make_tasks, make_turn


def toy_agents() -> dict[str, Speaker]:
    return {name: Speaker(name) for name in ("writer", "editor")}


def test_each_turn_gets_its_own_advantage_and_turns_that_were_not_trained_none() -> None:
    trajectories = [
        Trajectory(task, 0, (make_turn("writer"), make_turn("editor"), make_turn("writer")), 1.0, outcome)
        for task, outcome in zip(make_tasks(3), ("terminated", "failed", "truncated"))
    ]
    table = build_turn_batch(trajectories, toy_agents())
    kept = table.take(torch.tensor([0, 1, 2]))  # the third task is not trained on
    kept.credit[1] = float("nan")
    advantage = torch.tensor([0.5, 9.0, -0.25])
    found = list(with_advantages(trajectories, kept, advantage, iteration=4))
    assert [[turn.advantage for turn in trajectory.turns] for trajectory in found] == [
        [0.5, None, -0.25],
        [None] * 3,
        [None] * 3,
    ]
    assert {(trajectory.phase, trajectory.iteration) for trajectory in found} == {("train", 4)}


def test_advantages_of_tokens_are_averaged_over_the_turn() -> None:
    trajectory = Trajectory(make_tasks(1)[0], 0, (make_turn("writer"),), 1.0, "terminated")
    table, grid = build_turn_batch([trajectory], toy_agents()), torch.tensor([[0.5, 1.0, 0.0]])
    advantage = TokenAdvantages(grid, grid, torch.tensor([[True, True, False]]))
    (found,) = with_advantages([trajectory], table, advantage, iteration=1)
    assert found.turns[0].advantage == 0.75
