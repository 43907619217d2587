"""Dynamic sampling: tasks that teach nothing are replaced by others."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.errors import BatchError
from drmas_pl.rollout.dynamic_sampling import (
    RolloutBatch,
    check_rollout,
    draw_tasks,
    tasks_with_signal,
)
from drmas_pl.types import Task, Trajectory, Turn
from tests.helpers.tables import play
from tests.helpers.toy import Speaker, make_data, make_tasks, make_turn

TASKS = make_tasks(12)
FLAT, MIXED, LOCAL, CUT = make_tasks(4)
AGENTS = {"S": Speaker("S"), "V": Speaker("V", on_truncated="mask")}
USELESS = {task.id for index, task in enumerate(TASKS) if index % 3}


def draw(
    max_draws: int, *, useless: set[str] = USELESS, iteration: int = 0, calls: list[list[str]] | None = None
) -> RolloutBatch:
    """Draw four tasks per iteration out of twelve, two thirds of which teach nothing."""

    def answer(tasks: Sequence[Task]) -> list[Trajectory]:
        if calls is not None:
            calls.append([task.id for task in tasks])
        return [Trajectory(task, 0, (), 0.0, "terminated") for task in tasks]

    def with_signal(trajectories: Sequence[Trajectory]) -> set[str]:
        return {trajectory.task.id for trajectory in trajectories} - useless

    data = make_data(train=TASKS, tasks_per_iteration=4)
    draws = draw_tasks(
        data.tasks_for(iteration),
        partial(data.replacements, iteration=iteration),
        max_draws=max_draws,
        with_signal=with_signal,
    )
    tasks = next(draws)
    while True:
        try:
            tasks = draws.send(answer(tasks))
        except StopIteration as end:
            rollout: RolloutBatch = end.value
            return rollout


def test_one_draw_trains_on_what_came() -> None:
    rollout = draw(1)
    assert rollout.kept is None and rollout.draws == 1 and len(rollout.tasks) == 4 and rollout.dropped == 0.0


def test_tasks_without_signal_are_replaced_until_the_batch_is_full(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[list[str]] = []
    rollout = draw(10, calls=calls)
    assert rollout.kept == {task.id for task in TASKS} - USELESS and not caplog.records
    played = [task.id for task in rollout.tasks]
    assert (
        len(set(played)) == len(played)
        and [trajectory.task.id for trajectory in rollout.trajectories] == played
    )
    # each draw asks for as many as are missing
    kept = 0
    for ids in calls:
        assert len(ids) == 4 - kept
        kept += len(set(ids) - USELESS)
    assert rollout.draws == len(calls) > 1 and rollout.dropped == pytest.approx(1 - 4 / len(played))


def test_drawing_again_gives_the_same_tasks() -> None:
    assert draw(10).tasks == draw(10).tasks != draw(10, iteration=1).tasks


def test_the_cap_ends_it_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rollout = draw(2, useless={task.id for task in TASKS})
    assert rollout.draws == 2 and rollout.kept == frozenset() and len(rollout.tasks) == 8
    assert "only 0 of 4 tasks carry signal after 2 draws; raise rollout.max_draws" in caplog.text


def test_it_ends_when_there_are_no_other_tasks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rollout = draw(50, useless={task.id for task in TASKS[1:]})
    assert len(rollout.tasks) == 12 and rollout.kept == {TASKS[0].id} and rollout.draws < 50
    assert "only 1 of 4 tasks" in caplog.text


def test_a_task_carries_signal_if_the_scores_of_some_agent_differ() -> None:
    played = [
        *(play("SV", [0.0, 1.0], sample=n, task=FLAT) for n in range(2)),
        *(play("SV", [0.0, float(n)], sample=n, task=MIXED) for n in range(2)),
        # the team earns the same, the verifier does not
        *(play("SV", [0.0, 1.0], sample=n, task=LOCAL, local_reward=[0.0, 0.1 * n]) for n in range(2)),
        *(play("V", [float(n)], sample=n, task=CUT, finish_reason=["length"]) for n in range(2)),
    ]
    assert tasks_with_signal(build_turn_batch(played, AGENTS)) == {MIXED.id, LOCAL.id}


def test_agents_that_differ_only_from_each_other_carry_no_signal() -> None:
    played = [play("SV", [0.0, 1.0], sample=n, local_reward=[0.0, 0.5]) for n in range(2)]
    assert tasks_with_signal(build_turn_batch(played, AGENTS)) == set()


def collected(*changes: dict[str, Any]) -> list[Trajectory]:
    plain: dict[str, Any] = {
        "task": FLAT,
        "turns": (make_turn("writer", weights_version=3),),
        "reward": 1.0,
        "outcome": "terminated",
    }
    return [Trajectory(**{**plain, "sample": sample, **change}) for sample, change in enumerate(changes)]


def test_a_sound_collection_passes_with_failed_and_repeated_tasks() -> None:
    failed = {"outcome": "failed", "turns": (), "reward": 0.0}
    check_rollout(
        collected({}, {}, {"task": MIXED}, {"task": MIXED, **failed}), samples=2, versions={"writer": 3}
    )
    check_rollout(collected({}, {}, {}, {}), samples=2, versions={"writer": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [{}, {}, {"task": MIXED}],
            r"every task needs 2 samples, but 1 tasks differ, for example \('toy-1', 1\)",
        ),
        ([{}, {"reward": math.nan}], "task 'toy-0' was rewarded with nan; rewards must be finite"),
        (
            [{}, {"turns": (make_turn("writer", weights_version=2),)}],
            "agent 'writer' spoke with weights 2, expected version 3",
        ),
    ],
)
def test_a_broken_collection_is_refused(changes: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(BatchError, match=message):
        check_rollout(collected(*changes), samples=2, versions={"writer": 3})


@pytest.mark.parametrize(
    ("turn", "allowed"),
    [
        (make_turn("writer", weights_version=1), True),
        (make_turn("writer", weights_version=0), False),
        (make_turn("writer", weights_version=2, later_versions=((1, 3),)), True),
        (make_turn("writer", weights_version=0, later_versions=((1, 3),)), False),
        (make_turn("writer", weights_version=3, later_versions=((1, 4),)), False),
    ],
)
def test_no_token_may_be_older_than_allowed_or_newer_than_what_learns(turn: Turn, allowed: bool) -> None:
    found = collected({}, {"turns": (turn,)})
    if allowed:
        check_rollout(found, samples=2, versions={"writer": 3}, max_staleness=2)
        return
    with pytest.raises(BatchError, match="expected version 3 or at most 2 older"):
        check_rollout(found, samples=2, versions={"writer": 3}, max_staleness=2)
