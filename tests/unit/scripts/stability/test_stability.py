"""The stability experiment in miniature: statistics, the sweep of part A, runs of part B, tables and pictures."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch

from drmas_pl.algorithms.turn_batch import TurnBatch
from scripts.stability import __main__ as stability
from scripts.stability import training
from scripts.stability.frozen import GAPS, play, sweep
from scripts.stability.intervals import (
    bootstrap,
    log_correlation,
    percentile,
    spike_share,
    typical_factor,
)
from scripts.stability.moments import NORMALIZERS
from scripts.stability.regimes import REGIMES
from scripts.stability.training import Size, make_data, train_all

TOY = Size(iterations=1, tasks=2, samples=4, validation=4, validate_every=1, probe_every=1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def turns() -> tuple[TurnBatch, torch.Tensor]:
    return play(make_data(0, TOY), seed=0, samples=8)


def test_bootstrap_covers_the_mean_and_depends_on_its_seed_alone() -> None:
    samples = [1.0, 2.0, 3.0, 4.0, 5.0]
    interval = bootstrap(samples, statistics.fmean)
    assert interval.value == 3.0
    # the mean of five draws from 1..5 has standard deviation sqrt(2/5)
    assert interval.low == pytest.approx(3 - 1.96 * math.sqrt(0.4), abs=0.25)
    assert interval.high == pytest.approx(3 + 1.96 * math.sqrt(0.4), abs=0.25)
    assert interval == bootstrap(samples, statistics.fmean)
    assert interval != bootstrap(samples, statistics.fmean, seed=1, draws=50)


def test_bootstrap_leaves_undefined_draws_out() -> None:
    with pytest.raises(ValueError, match="at least one sample, got none"):
        bootstrap([], statistics.fmean)
    assert math.isnan(bootstrap([1.0], lambda values: math.nan).low)


def test_statistics_of_nothing_are_undefined() -> None:
    undefined = (
        percentile([], 0.5),
        spike_share([]),
        log_correlation([(1.0, 1.0)]),
        log_correlation([(1.0, 1.0)] * 3),
        typical_factor([]),
    )
    assert all(math.isnan(value) for value in undefined)


def test_spikes_are_relative_to_the_median() -> None:
    assert spike_share([1.0, 2.0, 3.0, 31.0]) == 0.25
    assert spike_share([1.0, 2.0, 3.0, 31.0], factor=20.0) == 0.0


def test_with_equal_norms_the_sweep_measures_what_is_predicted(turns: tuple[TurnBatch, torch.Tensor]) -> None:
    points = sweep(turns[0], torch.ones_like(turns[1]), seed=0)
    assert {(point.gap, point.size) for point in points} == {
        (gap, size) for gap, sizes in GAPS.items() for size in sizes
    }
    for point in points:
        assert point.moments.measured == pytest.approx(point.moments.predicted, rel=1e-3)


def test_a_gap_moves_every_normaliser_but_dr_mas(turns: tuple[TurnBatch, torch.Tensor]) -> None:
    points = [point for point in sweep(*turns, seed=0) if point.gap == "price" and point.agent == "backup"]
    measured = {(point.normalizer, point.size): point.moments.measured for point in points}
    assert measured["dr_mas", 10.0] == pytest.approx(measured["dr_mas", 0.0], rel=1e-4)
    assert measured["dr_mas_mean", 10.0] < 0.1 * measured["dr_mas_mean", 0.0]
    assert measured["dr_mas_std", 10.0] > 10 * measured["dr_mas_std", 0.0]


@pytest.mark.slow
def test_runs_are_kept_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = stability.run_training(tmp_path, regimes=["price"], seeds=[0], size=TOY)
    files = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert files == sorted(f"price-{name}-0.json" for name in NORMALIZERS)
    record = json.loads((tmp_path / "runs" / "price-dr_mas-0.json").read_text())
    assert [at for at, _ in record["curve"]] == [0, 1]
    assert len(record["agents"]["solver"]["grad_norm"]) == 1
    assert {found["agent"] for found in record["moments"]} <= {"solver", "backup"}
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"stability-{name}.png" for name in ("success", "gradients", "moments")
    }
    assert REGIMES["price"].title in report.tables
    row = next(row for row in report.results["rows"] if row["normalizer"] == "dr_mas")
    assert row["agents"]["solver"]["factor"].value == 1.0

    def refuse(*args: object, **settings: object) -> None:
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(training, "train", refuse)
    assert len(train_all(tmp_path / "runs", regimes=["price"], seeds=[0], size=TOY)) == len(NORMALIZERS)
    with pytest.raises(AssertionError, match="repeated"):
        train_all(tmp_path / "runs", regimes=["price"], seeds=[0], size=Size())


def test_normalisers_of_one_seed_play_the_same_tasks() -> None:
    first, second, other = (make_data(seed, TOY).tasks_for(0) for seed in (0, 0, 1))
    assert first == second != other


@pytest.mark.slow
def test_part_a_writes_results_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stability, "FROZEN_TASKS", 2)
    assert stability.main(["--part", "a", "--seeds", "1", "--output", str(tmp_path)]) == 0
    assert "λ → measured" in capsys.readouterr().out
    assert (tmp_path / "stability-frozen.png").is_file() and (tmp_path / "tables.md").is_file()
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"a"}


def test_the_program_wants_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stability.main(["--seeds", "0", "--output", str(tmp_path)]) == 2
    assert "--seeds must be at least 1, got 0" in capsys.readouterr().err
