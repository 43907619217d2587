"""What was played for iterations to come, on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drmas_pl.errors import CheckpointError
from drmas_pl.rollout.played_ahead import PlayedAhead, load_played_ahead, save_played_ahead
from drmas_pl.rollout.scheduler import AttemptRecord
from drmas_pl.types import Completion, Trajectory
from tests.helpers.toy import make_tasks, make_turn

TASKS = make_tasks(3)
TURN = make_turn("writer", (7, 8, 9), later_versions=((1, 3), (2, 4)))
PLAYED = PlayedAhead(
    {
        4: {
            (TASKS[0].id, 0): Trajectory(TASKS[0], 0, (TURN,), 0.1, "terminated", metrics={"x": 1 / 3}),
            (TASKS[0].id, 1): Trajectory(TASKS[0], 1, (), 0.0, "failed", cause="on purpose"),
        }
    },
    {
        4: {(TASKS[1].id, 0): AttemptRecord(4, 3)},
        5: {
            (TASKS[2].id, 1): AttemptRecord(
                5,
                2,
                1,
                {
                    1 << 62: Completion((1, 2), (-0.1, -1 / 3), "stop", 3),
                    17: Completion((3, 4), (-0.5, -2.0), "abort", 3, ((1, 4),)),
                },
            )
        },
    },
)


def test_what_was_played_is_read_back_as_it_was(tmp_path: Path) -> None:
    save_played_ahead(tmp_path, PLAYED)
    found = load_played_ahead(tmp_path, TASKS)
    assert found == PLAYED and found.iterations == [4, 5]
    assert found.finished[4][TASKS[0].id, 0].turns[0].token_versions == (0, 3, 4)


def test_tasks_are_the_runs_own_where_it_has_them(tmp_path: Path) -> None:
    task = replace(TASKS[0], metadata={"pair": (1, 2)})
    save_played_ahead(tmp_path, PlayedAhead({0: {(task.id, 0): Trajectory(task, 0, (), 0.0, "terminated")}}))
    assert load_played_ahead(tmp_path, [task]).finished[0][task.id, 0].task is task
    assert load_played_ahead(tmp_path, []).finished[0][task.id, 0].task.metadata == {"pair": [1, 2]}


@pytest.mark.parametrize("name", ["begun.jsonl", "trajectories.jsonl"])
def test_a_missing_file_is_an_error(tmp_path: Path, name: str) -> None:
    save_played_ahead(tmp_path, PLAYED)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read .*; choose another one of the run"):
        load_played_ahead(tmp_path, TASKS)


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    save_played_ahead(tmp_path, PLAYED)
    (tmp_path / "begun.jsonl").write_text('{"task": "toy-0"}\n')
    with pytest.raises(CheckpointError, match=r"cannot be read .*; choose another one of the run"):
        load_played_ahead(tmp_path, TASKS)
