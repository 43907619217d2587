"""Counts over trajectories, against counts by hand."""

from __future__ import annotations

import pytest

from drmas_pl.report.trajectory_statistics import Correlation, TrajectoryStatistics
from tests.helpers.run_folders import trajectory, turn


def test_rates_are_calls_per_trajectory_that_did_not_fail() -> None:
    counts = TrajectoryStatistics()
    twice = [turn("solver", "a"), turn("verifier", "no"), turn("solver", "b"), turn("verifier", "yes")]
    counts.add(trajectory("t0", twice, success=True), "t0")
    counts.add(trajectory("t1", [turn("solver", "a"), turn("solver", "a")], success=False), "t1")
    counts.add(trajectory("t2", [], success=False), "t2")
    counts.add(trajectory("t3", twice, success=True), "t3")
    failed = trajectory("t4", [turn("solver", "a")], success=False, outcome="failed", cause="Trace\nTimeout")
    counts.add(failed, "t4")
    assert {(start, end): rate for start, end, rate in counts.rates()} == {
        ("start", "solver"): 3 / 4,
        ("solver", "verifier"): 4 / 4,
        ("verifier", "solver"): 2 / 4,
        ("verifier", "right"): 2 / 4,
        ("solver", "solver"): 1 / 4,
        ("solver", "wrong"): 1 / 4,
        ("start", "wrong"): 1 / 4,
    }
    assert (counts.episodes, counts.failed, counts.causes) == (4, 1, {"Timeout": 1})
    assert counts.solved == {("t0", 0): True, ("t1", 0): False, ("t2", 0): False, ("t3", 0): True}


def test_agents_that_move_at_once_are_one_move() -> None:
    counts = TrajectoryStatistics()
    said = [("b", 0), ("a", 0), ("judge", 1), ("b", 2), ("b", 2), ("a", 2)]
    counts.add(trajectory("t", [turn(name, "x", move=move) for name, move in said], success=True), "t")
    assert {(start, end) for start, end, _ in counts.rates()} == {
        ("start", "a + b"),
        ("a + b", "judge"),
        ("judge", "a + b ×2"),
        ("a + b ×2", "right"),
    }


def test_turns_are_counted_by_what_is_wrong_with_them() -> None:
    counts = TrajectoryStatistics()
    malformed = {"status": "malformed", "reason": "no tag"}
    turns = [
        turn("solver", " \n", parsed=malformed),
        turn("solver", "x", parsed=malformed),
        turn("solver", "x", finish_reason="length"),
    ]
    counts.add(trajectory("t", turns, success=False, reward=0.5), "t")
    own = counts.agents["solver"]
    assert (own.turns, own.empty, own.invalid, own.cut) == (3, 1, 2, 1)
    assert own.reasons == {"empty": 1, "no tag": 1}
    assert counts.apart == 1


def test_correlation_of_a_line_and_of_a_constant() -> None:
    line, flat = Correlation(), Correlation()
    for x in (1.0, 2.0, 5.0):
        line.add(x, 3.0 - 2.0 * x)
        flat.add(x, 1.0)
    assert line.value == pytest.approx(-1.0)
    assert flat.value == 0.0 == Correlation().value
