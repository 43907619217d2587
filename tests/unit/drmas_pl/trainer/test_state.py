"""What a run remembers, how it comes back from a manifest, and its summary."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from drmas_pl.trainer.diagnosis import Finding
from drmas_pl.trainer.evaluation import Evaluation
from drmas_pl.trainer.state import RunState, limit_batches, peak_rss_mb
from drmas_pl.utils.manifest import STATE
from tests.helpers.toy import EvenEnv, WriterEditor


def evaluation(sampled: float, greedy: float | None = None) -> Evaluation:
    metrics = {
        "validation/success": sampled,
        "validation/writer/calls": 1.0,
        "validation/x": 0.5,
        "validation/source/toy/success": sampled,
        "validation-greedy/source/toy/success": greedy or 0.0,
        "validation/reward": 0.1,
    }
    return Evaluation(sampled, greedy, {1: sampled}, {"toy": {"sampled": sampled}}, {"writer": 1.0}, metrics)


def run(*scores: float) -> RunState:
    """A run validated before training and after each iteration."""
    state = RunState()
    for iteration, score in enumerate(scores):
        state.iteration = iteration
        state.evaluated(evaluation(score, greedy=score / 2), highlights=("x", "unheard_of"))
    return state


def test_the_best_validation_is_the_first_highest_after_training_began() -> None:
    assert (run(0.9, 0.5, 0.7, 0.7).best_at, run(0.9, 0.5, 0.7, 0.7).best) == (2, 0.7)
    assert run(0.9).best_at is None
    assert run(0.9, 0.0).best_at == 1


def test_a_validation_that_failed_altogether_is_not_the_best_one() -> None:
    state = RunState(iteration=1)
    state.evaluated(Evaluation(None, None, {}, {}, {}, {"validation/failed": 1.0}))
    assert state.best_at is None and state.summary(WriterEditor(EvenEnv()))["logged_after"] == {}


def test_evaluations_are_remembered_with_their_iteration_and_without_metrics() -> None:
    state = run(0.5, 0.75)
    assert state.evaluated_at == 1 and RunState().evaluated_at is None
    assert [entry["iteration"] for entry in state.evaluations] == [0, 1]
    assert "metrics" not in state.evaluations[0] and "trajectories" not in state.evaluations[0]


@pytest.mark.parametrize("scores", [(), (0.5,), (0.5, 0.25, 0.75)])
def test_a_state_comes_back_from_a_manifest(scores: tuple[float, ...]) -> None:
    state = run(*scores)
    state.idle, state.seconds_before = 3, 100.0
    manifest = state.manifest(7, {}, {"train": "abc"})
    assert (manifest.seed, manifest.iteration, manifest.data) == (7, state.iteration, {"train": "abc"})
    back = RunState.restore(replace(manifest, state=json.loads(json.dumps(manifest.state))))
    assert (
        back.run_id == state.run_id != RunState().run_id
        and state.manifest(7, {}, {}).state.keys() == STATE.keys()
    )
    assert (back.iteration, back.best_at, back.best, back.idle) == (
        state.iteration,
        state.best_at,
        state.best,
        3,
    )
    assert [entry["sampled"] for entry in back.evaluations] == list(scores)
    assert back.seconds >= 100.0


def test_the_summary_compares_before_and_after() -> None:
    summary = run(0.25, 0.75, 0.5).summary(WriterEditor(EvenEnv()))
    expected: dict[str, Any] = {
        "metric": "success",
        "before": 0.25,
        "after": 0.5,
        "before_greedy": 0.125,
        "after_greedy": 0.25,
        "sources_before": {"toy": {"sampled": 0.25}},
        "sources_after": {"toy": {"sampled": 0.5}},
        "calls_per_agent": {"writer": 1.0},
        "calls_per_agent_before": {"writer": 1.0},
        "highlights": {"x": 0.5},
        "highlights_before": {"x": 0.5},
        "logged_before": {
            "validation/success": 0.25,
            "validation-greedy/source/toy/success": 0.125,
            "validation/x": 0.5,
            "validation/writer/calls": 1.0,
        },
        "logged_after": {
            "validation/success": 0.5,
            "validation-greedy/source/toy/success": 0.25,
            "validation/x": 0.5,
            "validation/writer/calls": 1.0,
        },
        "best": {"iteration": 1, "score": 0.75},
        "iterations": 2,
        "warnings": [],
    }
    assert {name: summary[name] for name in expected} == expected
    assert set(summary) - set(expected) == {"seconds", "peak_rss_mb"} and summary["peak_rss_mb"] > 0


def test_a_run_without_validation_has_a_summary_too() -> None:
    summary = RunState(iteration=3).summary(WriterEditor(EvenEnv()))
    assert (summary["before"], summary["after"], summary["best"], summary["iterations"]) == (
        None,
        None,
        None,
        3,
    )
    assert summary["sources_after"] == summary["calls_per_agent"] == {}


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (0, []),
        (2, [1, 2]),
        (9, [1, 2, 3, 4]),
        (1, [1]),
        (1.0, [1, 2, 3, 4]),
        (0.5, [1, 2]),
        (0.01, [1]),
        (0.0, []),
    ],
)
def test_batches_are_limited_by_number_or_share(limit: float, kept: list[int]) -> None:
    assert limit_batches([1, 2, 3, 4], limit) == kept


@pytest.mark.parametrize("limit", [-1, 1.5, -0.5, True])
def test_other_limits_are_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit_val_batches must be an int >= 0 or a float"):
        limit_batches([1], limit)


def test_memory_is_measured_in_megabytes() -> None:
    assert 50 < peak_rss_mb() < 100_000


def test_what_keeps_a_run_from_learning_is_told_once_and_kept_while_it_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second, later = (
        Finding(f"because of {name}", cause=name) for name in ("first", "second", "later")
    )
    state = RunState()
    with caplog.at_level(logging.WARNING, "drmas_pl"):
        state.diagnosed((first, second))
        state.diagnosed((Finding("in other words", cause="second"), later))
    assert caplog.messages == ["because of first", "because of second"]
    assert state.diagnoses[1] == later and state.lasting == (Finding("in other words", cause="second"),)
    state.diagnosed(())
    state.diagnosed((second,))
    assert state.lasting == ()
    restored = RunState.restore(state.manifest(0, {}, {}))
    assert restored.lasting == () and restored.diagnoses == ()
