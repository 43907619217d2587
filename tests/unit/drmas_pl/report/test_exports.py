"""Runs as tables: grouped by what differs, seeds summed up, every number once."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from drmas_pl.report.confidence import aggregate_interval, interquartile_mean
from drmas_pl.report.exports import export_runs, group_runs
from drmas_pl.report.run_files import RunFiles, read_run
from tests.helpers.run_folders import team_config, write_folder

SCORES = {("dr_mas", 0): 0.6, ("dr_mas", 1): 0.7, ("dr_mas", 2): 0.8, ("grpo", 0): 0.5}


def runs(folder: Path) -> list[RunFiles]:
    found = []
    for (advantage, seed), score in SCORES.items():
        records = [
            {"iteration": 0, "validation/success": 0.25},
            {"iteration": 1, "train/reward": 0.5},
            {
                "iteration": 2,
                "validation/success": score,
                "validation/source/easy/success": score + 0.1,
                "validation/source/hard/success": score - 0.1,
            },
        ]
        config = team_config(seed=seed, advantage={"name": advantage})
        found.append(read_run(write_folder(folder / f"{advantage}-{seed}", records=records, config=config)))
    return found


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_runs_that_differ_by_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    groups = group_runs(runs(tmp_path))
    assert [(label, len(members)) for label, members in groups] == [
        ('advantage.name="dr_mas"', 3),
        ('advantage.name="grpo"', 1),
    ]
    assert group_runs(runs(tmp_path / "again")[:1])[0][0] == "dr_mas-0"


def test_tables_and_figures_are_written(tmp_path: Path) -> None:
    written = export_runs(runs(tmp_path), tmp_path / "export")
    assert [path.name for path in written] == [
        "runs.csv",
        "groups.csv",
        "curves.csv",
        "curves.png",
        "curves.svg",
    ]
    assert all(path.stat().st_size for path in written)
    rows = table(tmp_path / "export" / "runs.csv")
    assert [row["validation/success after"] for row in rows] == ["0.6", "0.7", "0.8", "0.5"]
    assert {row["validation/success before"] for row in rows} == {"0.25"}
    assert [row["advantage.name"] for row in rows] == ['"dr_mas"'] * 3 + ['"grpo"']
    assert [row["seed"] for row in rows] == ["0", "1", "2", "0"] and rows[0]["finished"] == "False"
    first, second = table(tmp_path / "export" / "groups.csv")
    assert float(first["mean"]) == pytest.approx(0.7) and first["seeds"] == "3"
    # Student's t with two degrees of freedom, 4.303 · 0.1 / √3
    assert float(first["low"]) == pytest.approx(0.7 - 0.2484, abs=1e-4)
    assert float(first["iqm"]) == pytest.approx(0.7)
    assert float(first["iqm low"]) < 0.7 < float(first["iqm high"])
    assert second["seeds"] == "1" and second["iqm"] == ""
    curves = table(tmp_path / "export" / "curves.csv")
    assert len(curves) == 4 * 5
    shown = [(row["iteration"], row["value"]) for row in curves if row["metric"] == "train/reward"]
    assert shown == 4 * [("1", "0.5")]


def test_the_interquartile_mean_ignores_a_quarter_at_both_ends() -> None:
    assert interquartile_mean([1.0, 2.0, 3.0]) == 2.0
    assert interquartile_mean([-1e9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1e9]) == 3.5


def test_the_interval_grows_with_the_spread_of_seeds_and_is_always_the_same() -> None:
    narrow = aggregate_interval([[0.50, 0.51, 0.52], [0.7, 0.7, 0.7]])
    wide = aggregate_interval([[0.2, 0.5, 0.8], [0.4, 0.7, 1.0]])
    assert wide[2] - wide[1] > narrow[2] - narrow[1] > 0
    assert wide == aggregate_interval([[0.2, 0.5, 0.8], [0.4, 0.7, 1.0]])
