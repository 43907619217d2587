"""Scores of an evaluation: over tasks, per source, without failed trajectories, sampled and greedy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest

from drmas_pl.engines.base import Engine
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.trainer.evaluation import Evaluation, evaluate
from drmas_pl.trainer.settings import EvaluationSettings
from drmas_pl.types import Task, Trajectory
from tests.helpers.toy import EvenEnv, WriterEditor, make_turn

TASKS = tuple(
    Task(name, name, data_source=source) for name, source in (("a", "easy"), ("b", "easy"), ("c", "hard"))
)
# how many of its four samples each task solves; the greedy pass solves b only
SOLVED = {"a": 4, "b": 1, "c": 2}


class Played:
    """Stands for a collector: notes the phases and returns what was played in them."""

    def __init__(self, failed: Sequence[tuple[str, int]] = ()) -> None:
        self.agents = {"writer": None, "editor": None}
        self.team = WriterEditor(EvenEnv())
        self.failed = set(failed)
        self.phases: list[Phase] = []

    def collect(self, tasks: Sequence[Task], engines: Mapping[str, Engine], phase: Phase) -> list[Trajectory]:
        self.phases.append(phase)
        greedy = phase.name.endswith("greedy")
        return [self.one(task, sample, greedy) for task in tasks for sample in range(phase.samples)]

    def one(self, task: Task, sample: int, greedy: bool) -> Trajectory:
        if (task.id, sample) in self.failed and not greedy:
            return Trajectory(task, sample, (), 0.0, "failed", cause="down")
        solved = task.id == "b" if greedy else sample < SOLVED[task.id]
        turns = (make_turn("writer"), make_turn("editor"))[: 1 if greedy else 2]
        return Trajectory(task, sample, turns, float(solved), "terminated", success=solved)


def run(collector: Played, tasks: Sequence[Task] = TASKS, **settings: Any) -> Evaluation:
    return evaluate(
        cast(Collector, collector), tasks, {}, EvaluationSettings(samples=4, **settings), phase="test", seed=3
    )


def test_rates_are_means_over_tasks() -> None:
    result = run(Played(), pass_at=(1, 2, 4))
    assert result.sampled == pytest.approx((1 + 0.25 + 0.5) / 3)
    assert result.pass_at == pytest.approx({1: result.sampled, 2: (1 + 0.5 + 5 / 6) / 3, 4: 1.0})
    assert result.greedy == pytest.approx(1 / 3)


def test_every_source_has_its_own_scores() -> None:
    assert run(Played(), pass_at=(2,)).sources == {
        "easy": pytest.approx(
            {"tasks": 2.0, "sampled": 0.625, "greedy": 0.5, "pass@2": 0.75, "pass@2_tasks": 2.0}
        ),
        "hard": pytest.approx(
            {"tasks": 1.0, "sampled": 0.5, "greedy": 0.0, "pass@2": 5 / 6, "pass@2_tasks": 1.0}
        ),
    }


def test_a_source_whose_name_begins_like_another_one_keeps_its_scores_to_itself() -> None:
    tasks = [Task("a", "a", data_source="sums"), Task("b", "b", data_source="sums/hard")]
    assert run(Played(), tasks, greedy=False).sources == {
        "sums": {"tasks": 1.0, "sampled": 1.0},
        "sums/hard": {"tasks": 1.0, "sampled": 0.25},
    }


def test_every_score_is_logged_under_a_name() -> None:
    result = run(Played([("a", 1)]), pass_at=(2, 4))
    logged = result.metrics
    assert (logged["test/success"], logged["test-greedy/success"]) == (result.sampled, result.greedy)
    assert {k: logged[f"test/pass@{k}"] for k in (2, 4)} == result.pass_at
    assert {agent: logged[f"test/{agent}/calls"] for agent in result.calls} == result.calls
    for source, scores in result.sources.items():
        own = {name: logged[f"test/source/{source}/{name}"] for name in scores.keys() - {"sampled", "greedy"}}
        assert own | {
            "sampled": logged[f"test/source/{source}/success"],
            "greedy": logged[f"test-greedy/source/{source}/success"],
        } == dict(scores)


def test_metrics_of_the_environment_are_means_over_tasks_as_success_is() -> None:
    class Graded(Played):
        def one(self, task: Task, sample: int, greedy: bool) -> Trajectory:
            played = super().one(task, sample, greedy)
            return replace(played, metrics={"exact_match": 1.0} if played.success else {})

    result = run(Graded([("a", 0), ("c", 3)]))
    assert result.metrics["test/exact_match"] == result.sampled == pytest.approx((1 + 0.25 + 2 / 3) / 3)
    assert result.metrics["test-greedy/exact_match"] == result.greedy


def sixteen(
    solved: Mapping[str, int], failed: Sequence[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> Evaluation:
    """Score 16 samples of each task."""
    monkeypatch.setattr(f"{__name__}.SOLVED", solved)
    settings = EvaluationSettings(samples=16, pass_at=(1, 16), greedy=False)
    return evaluate(cast(Collector, Played(failed)), TASKS, {}, settings, phase="test", seed=3)


def test_pass_at_k_that_no_task_has_enough_samples_for_is_absent_and_not_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = sixteen({"a": 2, "b": 8, "c": 14}, [(task.id, 15) for task in TASKS], monkeypatch)
    assert result.sampled == pytest.approx(0.53, abs=0.005)
    assert result.pass_at.keys() == {1} and "test/pass@16" not in result.metrics
    assert (result.metrics["test/pass@16_tasks"], result.metrics["test/pass@1_tasks"]) == (0.0, 3.0)
    assert "pass@16" not in result.sources["easy"] and result.sources["easy"]["pass@16_tasks"] == 0.0


def test_pass_at_k_over_few_tasks_says_how_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults on the hard tasks leave the one that is solved now and then: 1.0 beside 0.1."""
    result = sixteen({"a": 0, "b": 0, "c": 5}, [("a", 15), ("b", 15)], monkeypatch)
    assert (result.pass_at[16], result.sampled) == (1.0, pytest.approx(0.1, abs=0.005))
    assert (result.metrics["test/pass@16_tasks"], result.metrics["test/tasks"]) == (1.0, 3.0)


def test_samples_that_fail_are_played_again_up_to_the_setting() -> None:
    collector = Played()
    run(collector)
    run(collector, retries=5)
    assert [phase.retries for phase in collector.phases] == [2, 2, 5, 5]


def test_failed_trajectories_count_in_nothing_but_their_number() -> None:
    result = run(Played([("a", 0), ("b", 0)]), pass_at=(4,))
    assert result.sampled == pytest.approx((1 + 0 + 0.5) / 3)
    assert result.failed == 2 and result.metrics["test/failed"] == pytest.approx(2 / 12)
    assert result.pass_at == {4: 1.0}, "only c has four samples left"
    assert result.calls == {"writer": 1.0, "editor": 1.0}


def test_a_task_whose_samples_all_failed_is_left_out() -> None:
    result = run(Played([("c", sample) for sample in range(4)]))
    assert result.sampled == pytest.approx(0.625)
    assert result.sources["hard"] == {"tasks": 0.0, "greedy": 0.0} and result.metrics["test/tasks"] == 2.0


def test_without_a_sample_that_counts_there_is_no_score() -> None:
    result = run(Played([(task.id, sample) for task in TASKS for sample in range(4)]), pass_at=(1,))
    assert (result.sampled, result.greedy, result.pass_at, result.calls) == (
        None,
        pytest.approx(1 / 3),
        {},
        {},
    )
    assert result.metrics["test/failed"] == 1.0 and "test/success" not in result.metrics


def test_the_greedy_pass_is_one_sample_at_temperature_zero_and_optional() -> None:
    collector = Played()
    run(collector, sampling={"temperature": 0.6, "top_p": 0.9})
    sampled, greedy = collector.phases
    assert (sampled.name, sampled.samples, sampled.sampling, sampled.seed) == (
        "test",
        4,
        {"temperature": 0.6, "top_p": 0.9},
        3,
    )
    assert (greedy.name, greedy.samples, greedy.sampling) == (
        "test-greedy",
        1,
        {"temperature": 0.0, "top_p": 1.0, "top_k": -1},
    )
    without = run(Played(), greedy=False)
    assert without.greedy is None and "greedy" not in without.sources["easy"]
    assert not any(name.startswith("test-greedy") for name in without.metrics)


def test_calls_and_metrics_of_both_passes_stay_apart() -> None:
    result = run(Played())
    assert result.calls == {"writer": 1.0, "editor": 1.0}
    assert (result.metrics["test/turns"], result.metrics["test-greedy/turns"]) == (2.0, 1.0)
    assert len(result.trajectories) == 15
    assert {(played.phase, played.iteration) for played in result.trajectories} == {("test", None)}


def test_scores_are_plain_data_without_trajectories() -> None:
    # metadata that can neither be copied nor written must not matter
    tasks = [Task("a", "a", metadata=MappingProxyType({"x": 1}))]
    scores = run(Played(), tasks, pass_at=(2,)).scores()
    assert "trajectories" not in scores and json.loads(json.dumps(scores))["sampled"] == 1.0


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot evaluate test: the split has no tasks"):
        run(Played(), ())
