"""Tables of turns for tests of credit rules and estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drmas_pl.types import Task, Trajectory
from tests.helpers.toy import make_tasks, make_turn

TASK = make_tasks(1)[0]


def play(
    speakers: str, rewards: Sequence[float], *, sample: int = 0, task: Task = TASK, **more: Any
) -> Trajectory:
    """Make a trajectory of one turn per letter; ``rewards`` are the team's per turn.

    ``more`` holds sequences of further turn fields, one entry per turn, ``success``, and ``paid``, what agents were paid alone.
    """
    success = bool(more.pop("success", False))
    paid = more.pop("paid", {})
    columns: Mapping[str, Sequence[Any]] = {"reward": rewards, **more}
    turns = [
        make_turn(
            name,
            index=place,
            agent_index=speakers[:place].count(name),
            **{field: column[place] for field, column in columns.items()},
        )
        for place, name in enumerate(speakers)
    ]
    return Trajectory(task, sample, tuple(turns), sum(rewards), "terminated", success=success, rewards=paid)
