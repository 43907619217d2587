"""Estimators with other baselines than the group mean, on tables of turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from drmas_pl.algorithms.baseline_estimators import BatchWhitening, BestOfK, LeaveOneOut, RoleBaseline
from drmas_pl.algorithms.estimators import AdvantageEstimator
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.types import Task
from tests.helpers.tables import play
from tests.helpers.toy import Speaker, make_tasks

TASKS = make_tasks(3)
AGENTS = {"S": Speaker("S"), "V": Speaker("V", on_truncated="mask")}


def table(rewards: Sequence[float], speakers: str = "SV", task: int = 0, **more: Any) -> TurnBatch:
    """One trajectory of one task per reward, paid on its last turn."""
    paid = [[0.0] * (len(speakers) - 1) + [reward] for reward in rewards]
    played = [
        play(speakers, pay, sample=n, task=TASKS[task], success=pay[-1] == 1, **more)
        for n, pay in enumerate(paid)
    ]
    return build_turn_batch(played, AGENTS)


def test_rloo_compares_with_the_others_of_the_group() -> None:
    third = pytest.approx(-1 / 3)
    assert LeaveOneOut()(table([1, 0, 0, 0], "S")).tolist() == [1.0, third, third, third]
    # per task, six rows of three samples: 1 - 0 and 0 - 1/2, or among the rows 1 - 1/5 and 0 - 2/5
    whole = LeaveOneOut(scope=("task",))(table([1, 0, 0]))
    assert whole.tolist() == pytest.approx([1.0, 1.0, -0.5, -0.5, -0.5, -0.5])
    among_turns = LeaveOneOut(scope=("task",), baseline="turns")(table([1, 0, 0]))
    assert among_turns.tolist() == pytest.approx([0.8, 0.8, -0.4, -0.4, -0.4, -0.4])
    by_trajectory = LeaveOneOut(unit="trajectory", scope=("task",))(table([1, 0, 0]))
    assert by_trajectory.tolist() == pytest.approx([1.0, 1.0, -0.5, -0.5, -0.5, -0.5])


def test_the_baseline_of_rloo_holds_no_turn_of_the_same_trajectory() -> None:
    # S says three things in the first sample, of which it alone is paid for the first, and one in each other
    played = [
        play("SSS", [0.0, 0.0, 1.0], local_reward=[0.5, 0.0, 0.0]),
        play("S", [0.5], sample=1),
        play("S", [0.0], sample=2),
    ]
    found = LeaveOneOut()(build_turn_batch(played, AGENTS))
    # 1.5, 1 and 1 against (.5 + 0)/2; .5 and 0 against the first sample's mean 7/6 and the other
    assert found.tolist() == pytest.approx([1.25, 0.75, 0.75, 0.5 - 7 / 12, 0.0 - (7 / 6 + 0.5) / 2])
    alone = build_turn_batch(played[:1], AGENTS)
    assert LeaveOneOut()(alone).tolist() == [0.0] * 3
    assert LeaveOneOut(singleton="raw")(alone).tolist() == [1.5, 1.0, 1.0]
    assert LeaveOneOut(baseline="turns")(alone).tolist() == [0.5, -0.25, -0.25]


def test_rloo_follows_its_rule_for_groups_of_one() -> None:
    assert LeaveOneOut()(table([0.5], "S")).tolist() == [0.0]
    assert LeaveOneOut(singleton="raw")(table([0.5], "S")).tolist() == [0.5]


def test_reinforce_pp_whitens_the_batch_or_each_agent() -> None:
    assert BatchWhitening()(table([1, 0, 0, 1], "S")).tolist() == pytest.approx(
        [0.8660, -0.8660, -0.8660, 0.8660], abs=1e-4
    )
    uneven = build_turn_batch(
        [play("SV", [0.0, r], sample=n, local_reward=[0.0, 9.0]) for n, r in enumerate([1.0, 0.0])], AGENTS
    )
    whole, each = BatchWhitening()(uneven), BatchWhitening(per_scope=("agent",))(uneven)
    assert whole[0] < 0 < whole[1] and each.tolist() == pytest.approx(
        [0.7071, 0.7071, -0.7071, -0.7071], abs=1e-4
    )


def test_reinforce_pp_can_subtract_the_mean_of_the_task_first() -> None:
    played = [
        play("S", [reward], sample=n % 2, task=TASKS[n // 2]) for n, reward in enumerate([1.0, 0.0, 5.0, 5.0])
    ]
    found = BatchWhitening(baseline=("task",))(build_turn_batch(played, AGENTS))
    assert found.tolist() == pytest.approx([1.2247, -1.2247, 0.0, 0.0], abs=1e-4)


def test_the_mean_of_the_task_is_that_of_all_its_turns_whatever_is_whitened_together() -> None:
    # own scores of S and V: 1 and 2, 0 and 1 on the first task, whose mean is 1; 4 and 0, 0 and 0 on the second, whose mean is 1 too
    own = [(1.0, 2.0), (0.0, 1.0), (4.0, 0.0), (0.0, 0.0)]
    played = [
        play("SV", [0.0, 0.0], sample=n % 2, task=TASKS[n // 2], local_reward=pair)
        for n, pair in enumerate(own)
    ]
    found = BatchWhitening(baseline=("task",), per_scope=("agent",))(build_turn_batch(played, AGENTS))
    # S: 0, -1, 3, -1 around .25 over the root of 10.75/3; V: 1, 0, -1, -1 around -.25 over the root of 2.75/3
    assert found[::2].tolist() == pytest.approx([-0.13207, -0.66034, 1.45274, -0.66034], abs=1e-4)
    assert found[1::2].tolist() == pytest.approx([1.30558, 0.26112, -0.78335, -0.78335], abs=1e-4)


@pytest.mark.parametrize("per_scope", [("batch",), ("agent",)])
def test_tasks_of_equal_scores_get_exactly_nothing_after_whitening(per_scope: Any) -> None:
    scores = [0.3, 0.7, 0.1, 0.9, 0.9, 0.9, 0.3, 0.4]
    played = [
        play("S" if n < 3 else "SV", [0.0, score][-1 if n < 3 else 0 :], sample=n, task=TASKS[n // 3])
        for n, score in enumerate(scores)
    ]
    turns = build_turn_batch([*played, play("V", [5.0], task=Task("alone", "?"))], AGENTS)
    found = BatchWhitening(baseline=("task",), per_scope=per_scope)(turns)
    dead = torch.tensor([task in (TASKS[1].id, "alone") for task in turns.tasks])
    assert dead.sum() == 7 and found[dead].tolist() == [0.0] * 7 and (found[~dead] != 0).any()


def test_best_of_k_values_trajectories_and_gives_every_turn_the_same() -> None:
    third = pytest.approx(-1 / 3)
    found = BestOfK(k=2)(table([1, 0, 0, 0])).tolist()
    assert found == [1.0, 1.0, *[third] * 6]


def test_best_of_k_ignores_penalties_and_tasks_with_too_few_attempts() -> None:
    agents = {"S": Speaker("S", invalid_penalty=0.5), "V": Speaker("V")}
    played = [play("S", [float(n == 0)], sample=n, success=n == 0) for n in range(5)]
    few = [play("S", [float(n == 0)], sample=n, task=TASKS[1], success=n == 0) for n in range(3)]
    found = BestOfK(k=4)(build_turn_batch([*played, *few], agents)).tolist()
    # one of five: four of the five subsets hold it, so σ = 0.4 and a success is worth 0.2 / 0.4
    assert found == pytest.approx([0.5, *[-0.125] * 4, 0.0, 0.0, 0.0])


def test_a_running_baseline_remembers_each_agent_and_source() -> None:
    estimator = RoleBaseline(decay=0.5)
    assert estimator(table([1.0, 1.0])).tolist() == [1.0, 1.0, 0.5, 0.5]
    assert estimator(table([1.0])).tolist() == [0.25, 0.25]
    assert estimator.state_dict() == {"toy/S": 0.875, "toy/V": 0.875}


def test_several_turns_of_a_trajectory_move_a_running_baseline_once() -> None:
    estimator = RoleBaseline(decay=0.5)
    estimator(table([1.0], "SSSV"))
    assert estimator.state_dict() == {"toy/S": 0.5, "toy/V": 0.5}


def test_a_running_baseline_goes_on_from_its_saved_state() -> None:
    whole, first, second = RoleBaseline(), RoleBaseline(), RoleBaseline()
    batches = [table([1.0, 0.0]), table([0.0, 1.0], "SVS"), table([1.0, 1.0], "S")]
    expected = [whole(batch) for batch in batches]
    first(batches[0])
    # the keys come back in another order, as from an edited file
    second.load_state_dict(dict(reversed(json.loads(json.dumps(first.state_dict())).items())))
    assert [second(batch).tolist() for batch in batches[1:]] == [found.tolist() for found in expected[1:]]


ALL: list[AdvantageEstimator] = [
    LeaveOneOut(),
    BatchWhitening(),
    BatchWhitening(baseline=("task",)),
    BestOfK(k=2),
    RoleBaseline(),
]


@pytest.mark.parametrize("estimator", ALL)
def test_turns_that_are_not_trained_get_nothing_and_change_nothing(estimator: AdvantageEstimator) -> None:
    rewards = [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
    plain = [play("SV", pay, sample=n, success=pay[1] == 1) for n, pay in enumerate(rewards)]
    cut = [
        play("SV", pay, sample=n, success=pay[1] == 1, finish_reason=["stop", "length"])
        for n, pay in enumerate(rewards)
    ]
    alone = [play("S", [pay[1]], sample=n, success=pay[1] == 1) for n, pay in enumerate(rewards)]
    assert estimator.scopes is None and not estimator.needs_values
    fresh = RoleBaseline() if isinstance(estimator, RoleBaseline) else estimator
    found = fresh(build_turn_batch(cut, AGENTS))
    assert found[1::2].tolist() == [0.0] * 3
    expected = (RoleBaseline() if isinstance(estimator, RoleBaseline) else estimator)(
        build_turn_batch(alone, AGENTS)
    )
    assert torch.allclose(found[::2], expected) and len(build_turn_batch(plain, AGENTS)) == 6


@pytest.mark.parametrize("estimator", ALL)
def test_an_empty_table_has_no_advantages(estimator: AdvantageEstimator) -> None:
    assert estimator(build_turn_batch([], AGENTS)).tolist() == []  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeaveOneOut(unit="row"), "unit must be turn or trajectory, got 'row'"),  # type: ignore[arg-type]
        (lambda: LeaveOneOut(scope=("tasks",)), "a scope needs a list of names"),  # type: ignore[arg-type]
        (lambda: LeaveOneOut(singleton="drop"), "singleton"),  # type: ignore[arg-type]
        (lambda: LeaveOneOut(baseline="rows"), "baseline must be one of"),  # type: ignore[arg-type]
        (
            lambda: LeaveOneOut(unit="trajectory", baseline="turns"),
            "baseline='turns' compares turns, got unit='trajectory'; set unit='turn'",
        ),
        (lambda: BatchWhitening(baseline=()), "a scope needs a list of names"),
        (lambda: BatchWhitening(per_scope=("x",)), "a scope needs a list of names"),  # type: ignore[arg-type]
        (lambda: BestOfK(k=0), "k must be at least 1, got 0"),
        (lambda: RoleBaseline(decay=1.5), "decay must be"),
    ],
)
def test_wrong_settings_say_what_is_right(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
