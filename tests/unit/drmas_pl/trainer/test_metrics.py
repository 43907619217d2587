"""What is logged about a collection, its advantages and the update."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.errors import ConfigError
from drmas_pl.parsing import Parsed
from drmas_pl.trainer.metrics import (
    collection_metrics,
    health_metrics,
    mean,
    signal_metrics,
    staleness_metrics,
    update_metrics,
)
from drmas_pl.types import MetricInfo, Trajectory
from drmas_pl.workers.learner import UpdateReport
from tests.helpers.toy import Speaker, make_tasks, make_turn

NAMES = ("writer", "editor")
PRESETS: dict[str, dict[str, Any]] = {
    "dr_mas": {},
    "dr_mas_mean": {"std_scope": ("task",)},
    "dr_mas_std": {"mean_scope": ("task",)},
    "grpo_turn": {"mean_scope": ("task",), "std_scope": ("task",)},
    "grpo": {"unit": "trajectory", "mean_scope": ("task",), "std_scope": ("task",)},
    "dr_grpo": {"unit": "trajectory", "mean_scope": ("task",), "std_scope": None},
}


def random_table() -> TurnBatch:
    """Four samples of five tasks with random rewards, unequal calls and penalties."""
    generator = torch.Generator().manual_seed(2)
    trajectories = []
    for task in make_tasks(5):
        for sample in range(4):
            reward, invalid, calls = torch.rand(3, generator=generator).tolist()
            parsed = Parsed("malformed" if invalid < 0.3 else "valid")
            turns = [
                make_turn("writer"),
                *[make_turn("editor", parsed=parsed) for _ in range(1 + round(calls * 2))],
            ]
            trajectories.append(Trajectory(task, sample, tuple(turns), reward, "terminated"))
    return build_turn_batch(
        trajectories, {"writer": Speaker("writer"), "editor": Speaker("editor", invalid_penalty=0.4)}
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_amplification_is_the_mean_square_of_population_advantages(preset: str) -> None:
    table, estimator = random_table(), GroupNormalizer(ddof=0, eps=0.0, **PRESETS[preset])
    metrics = signal_metrics(table, estimator(table), estimator.scopes)
    for name in NAMES:
        assert metrics[f"train/{name}/amplification"] == pytest.approx(
            metrics[f"train/{name}/advantage_square"], rel=1e-5
        )
        if preset == "dr_mas":
            assert metrics[f"train/{name}/amplification"] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "setting", [{"min_std": 0.35}, {"clip": 0.8}, {"min_std": 0.2, "clip": 1.1}], ids=str
)
def test_amplification_knows_of_floor_and_clip(preset: str, setting: dict[str, Any]) -> None:
    table, estimator = random_table(), GroupNormalizer(ddof=0, eps=0.0, **PRESETS[preset], **setting)
    metrics, plain = (
        signal_metrics(table, made(table), made.scopes)
        for made in (estimator, replace(estimator, min_std=0.0, clip=None))
    )
    grpo = replace(estimator, unit="turn", mean_scope=("task",), std_scope=("task",))
    for name in NAMES:
        logged = metrics[f"train/{name}/amplification"]
        assert logged == pytest.approx(metrics[f"train/{name}/advantage_square"], rel=1e-5)
        if preset != "dr_grpo":  # it divides by nothing, and its advantages stay below the bounds
            assert logged < plain[f"train/{name}/amplification"]
        elsewhere = signal_metrics(table, grpo(table), grpo.scopes)
        assert metrics[f"train/{name}/amplification_global"] == pytest.approx(
            elsewhere[f"train/{name}/advantage_square"], rel=1e-5
        )


@pytest.mark.parametrize("rule", ["zero", "raw", "agent_batch"])
def test_amplification_counts_groups_of_one_as_the_rule_says(rule: Any) -> None:
    rewards = ((1.0, 0.0), (0.5, 0.25), (0.75,), (0.25,))
    trajectories = [
        Trajectory(task, sample, (make_turn("writer"),), reward, "terminated")
        for task, given in zip(make_tasks(4), rewards)
        for sample, reward in enumerate(given)
    ]
    table = build_turn_batch(trajectories, {"writer": Speaker("writer")})
    estimator = GroupNormalizer(ddof=0, eps=0.0, singleton=rule)
    metrics = signal_metrics(table, estimator(table), estimator.scopes)
    squares = estimator(table).double().square()
    expected = squares[:4].mean() if rule == "zero" else squares.mean()
    assert metrics["train/writer/amplification"] == pytest.approx(expected.item(), rel=1e-5)


def test_the_global_baseline_does_not_depend_on_the_estimator() -> None:
    table = random_table()
    found = []
    for preset in PRESETS.values():
        estimator = GroupNormalizer(ddof=0, eps=0.0, **preset)
        found.append(
            signal_metrics(table, estimator(table), estimator.scopes)["train/editor/amplification_global"]
        )
    reference = GroupNormalizer(ddof=0, eps=0.0, **PRESETS["grpo_turn"])
    assert set(found) == {
        signal_metrics(table, reference(table), reference.scopes)["train/editor/amplification"]
    }


def test_groups_without_signal_are_counted_per_agent() -> None:
    rewards = {"toy-0": (0.0, 0.0), "toy-1": (1.0, 1.0), "toy-2": (0.5, 0.5), "toy-3": (1.0, 0.0)}
    trajectories = [
        Trajectory(task, sample, (make_turn("writer"),), reward, "terminated")
        for task in make_tasks(4)
        for sample, reward in enumerate(rewards[task.id])
    ]
    trajectories.append(
        Trajectory(make_tasks(5)[4], 0, (make_turn("writer"), make_turn("editor")), 1.0, "terminated")
    )
    table, estimator = (
        build_turn_batch(trajectories, {name: Speaker(name) for name in NAMES}),
        GroupNormalizer(),
    )
    metrics = {**signal_metrics(table, estimator(table), estimator.scopes), **health_metrics(table)}
    writer = {name.rpartition("/")[2]: value for name, value in metrics.items() if "/writer/" in name}
    assert writer["no_signal"] == pytest.approx(7 / 9)
    assert (writer["groups_all_zero"], writer["groups_all_one"]) == (0.2, 0.4)
    assert (writer["groups_all_equal"], writer["groups_singleton"]) == (pytest.approx(0.6), 0.2)
    assert writer["reward_mean"] == pytest.approx(5 / 9) and writer["reward_std"] == pytest.approx(
        0.4374, abs=1e-4
    )
    assert "train/editor/amplification" not in metrics and metrics["train/editor/no_signal"] == 1.0
    assert all(math.isfinite(value) for value in metrics.values())


def test_an_empty_table_has_no_signal_metrics() -> None:
    assert signal_metrics(build_turn_batch([], {}), torch.zeros(0), GroupNormalizer().scopes) == {}


@pytest.fixture
def collection() -> list[Trajectory]:
    task = make_tasks(1)[0]
    writer = make_turn("writer", (1, 2, 3), prompt_ids=(1,) * 5)
    cut = make_turn("editor", (1,), finish_reason="length", parsed=Parsed("truncated"), prompt_truncated=True)
    silent = make_turn("editor", (1, 2), parsed=Parsed("no_verdict"))
    return [
        Trajectory(task, 0, (writer, cut, silent), 1.0, "terminated", success=True, metrics={"tries": 1}),
        Trajectory(task, 1, (writer,), 0.0, "truncated", metrics={"tries": 4, "rounds": 2}),
        Trajectory(
            task, 2, (writer, writer), 9.0, "failed", success=True, metrics={"tries": 99}, cause="down"
        ),
        Trajectory(task, 3, (writer, writer), 0.0, "terminated"),
    ]


def test_collections_are_summarised_without_failed_trajectories(collection: list[Trajectory]) -> None:
    metrics = collection_metrics("train", collection, NAMES)
    team = {name: value for name, value in metrics.items() if name.count("/") == 1}
    assert team == pytest.approx(
        {
            "train/reward": 1 / 3,
            "train/success": 1 / 3,
            "train/truncated": 1 / 3,
            "train/failed": 0.25,
            "train/turns": 2.0,
            "train/tries": 5 / 3,
            "train/rounds": 2 / 3,
        }
    )


DECLARED = {
    "gave_up": MetricInfo("1 if it gave up", "Given up."),
    "never": MetricInfo("1 if it ever happens", "Never."),
    "right_of_reviewed": MetricInfo("1 if right", "Of those reviewed.", conditional=True),
    "right_of_none": MetricInfo("1 if right", "Of none.", conditional=True),
}


def test_a_trajectory_without_a_metric_counts_as_0_unless_the_metric_is_conditional() -> None:
    """25 of 31 answered questions are right, one more was given up unanswered: 78.1 % of all, not 80.6 % of the answered ones."""
    (task,) = make_tasks(1)
    outcomes = [{"exact_match": 1.0, "right_of_reviewed": 1.0}] * 25 + [{"exact_match": 0.0}] * 6
    outcomes += [{"gave_up": 1.0, "right_of_reviewed": 0.0}]
    trajectories = [
        Trajectory(task, sample, (), 0.0, "terminated", metrics=metrics)
        for sample, metrics in enumerate(outcomes)
    ]
    metrics = collection_metrics("validation", trajectories, [], declared=DECLARED)
    own = {name.partition("/")[2]: metrics[name] for name in metrics}
    assert own["exact_match"] == pytest.approx(25 / 32) and own["gave_up"] == pytest.approx(1 / 32)
    assert own["right_of_reviewed"] == pytest.approx(25 / 26)
    assert own["never"] == 0.0 and "right_of_none" not in own


@pytest.mark.parametrize("name", ["success", "reward", "turns", "tasks", "failed"])
def test_a_metric_must_not_take_a_name_of_the_trainer(name: str) -> None:
    trajectory = Trajectory(make_tasks(1)[0], 0, (), 1.0, "terminated", metrics={name: 0.5})
    with pytest.raises(ConfigError, match=rf"reports metrics called \['{name}'\].*choose other names"):
        collection_metrics("train", [trajectory], [])


def test_agents_are_summarised_over_their_turns(collection: list[Trajectory]) -> None:
    metrics = collection_metrics("test", collection, NAMES)
    editor = {name.rpartition("/")[2]: value for name, value in metrics.items() if "/editor/" in name}
    assert editor == pytest.approx(
        {
            "calls": 2 / 3,
            "valid": 0.0,
            "malformed": 0.0,
            "truncated": 0.5,
            "no_verdict": 0.5,
            "prompt_truncated": 0.5,
            "prompt_tokens": 3.0,
            "response_tokens": 1.5,
        }
    )
    assert (metrics["test/writer/calls"], metrics["test/writer/prompt_tokens"]) == (pytest.approx(4 / 3), 5.0)


def test_an_agent_that_never_spoke_has_calls_alone(collection: list[Trajectory]) -> None:
    metrics = collection_metrics("train", collection, ["nobody"])
    assert {name: value for name, value in metrics.items() if "/nobody/" in name} == {
        "train/nobody/calls": 0.0
    }


def test_an_average_over_nothing_is_left_out(collection: list[Trajectory]) -> None:
    failed = [trajectory for trajectory in collection if trajectory.failed]
    assert collection_metrics("train", failed, NAMES, declared=DECLARED) == {"train/failed": 1.0}
    assert collection_metrics("train", [], NAMES, declared=DECLARED) == {}
    assert mean([]) == 0.0


def test_staleness_is_the_mean_over_an_agents_tokens() -> None:
    turns = (
        make_turn("writer", (1, 2), weights_version=1),
        make_turn("writer", (1, 2, 3, 4), weights_version=1, later_versions=((1, 2), (3, 3))),
        make_turn("editor", (5,), weights_version=2),
    )
    played = [Trajectory(make_tasks(1)[0], 0, turns, 0.0, "terminated")]
    # ages of the writer's tokens: 2, 2 and 2, 1, 1, 0
    assert staleness_metrics(played, {"writer": 3, "editor": 2, "nobody": 2}) == {
        "train/writer/staleness": pytest.approx(8 / 6),
        "train/writer/staleness_max": 2.0,
        "train/writer/mixed_versions": 0.5,
        "train/editor/staleness": 0.0,
        "train/editor/staleness_max": 0.0,
        "train/editor/mixed_versions": 0.0,
    }


def test_updates_are_named_by_group_and_agent_with_shares_of_the_norm() -> None:
    shared = UpdateReport(
        2, 1, 7, {"grad_norm": 0.5}, {"writer": {"grad_norm": 3.0, "loss": 1.0}, "editor": {"grad_norm": 1.0}}
    )
    assert update_metrics({"shared": shared, "idle": UpdateReport()}) == {
        "train/group/shared/steps": 2.0,
        "train/group/shared/skipped": 1.0,
        "train/group/shared/rows": 7.0,
        "train/group/shared/grad_norm": 0.5,
        "train/writer/grad_norm": 3.0,
        "train/writer/loss": 1.0,
        "train/writer/grad_share": 0.75,
        "train/editor/grad_norm": 1.0,
        "train/editor/grad_share": 0.25,
        "train/group/idle/steps": 0.0,
        "train/group/idle/skipped": 0.0,
        "train/group/idle/rows": 0.0,
    }


def test_what_agents_are_paid_alone_is_averaged_over_trajectories() -> None:
    task = make_tasks(1)[0]
    turns = (make_turn("writer"), make_turn("editor"))
    games = [
        Trajectory(task, sample, turns, 0.0, "terminated", rewards={"writer": paid, "editor": -paid})
        for sample, paid in enumerate((1.0, 0.0, -0.25))
    ]
    failed = Trajectory(task, 3, turns, 0.0, "failed", rewards={"writer": 9.0})
    found = collection_metrics("train", [*games, failed], NAMES)
    assert (found["train/writer/reward"], found["train/editor/reward"]) == (0.25, -0.25)
    assert not any(
        name.endswith("r/reward")
        for name in collection_metrics("train", [replace(games[0], rewards={})], NAMES)
    )
