"""The comparison of finished runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.tools.report import main


def write_run(folder: Path, *, after: float) -> None:
    folder.mkdir(parents=True)
    calls = {"solver": 1.5, "verifier": 1.0}
    summary = {
        "metric": "accuracy",
        "before": 0.4,
        "after": after,
        "before_greedy": 0.5,
        "after_greedy": None,
        "calls_per_agent": calls,
        "calls_per_agent_before": calls,
        "iterations": 2,
        "seconds": 90.0,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    records = [
        {"iteration": 0, "validation/success": 0.4},
        {"iteration": 1},
        {"iteration": 2, "validation/success": after},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_sweep_becomes_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "sweep" / "0", after=0.7)
    write_run(tmp_path / "sweep" / "1", after=0.6)
    assert main([str(tmp_path / "sweep")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| validation/success | validation-greedy/success |" in lines[0]
    assert "| validation/verifier/calls |" in lines[0]
    assert "| 0 | 40.0 → 70.0 (+30.0) | – | 1.50 → 1.50 | 1.00 → 1.00 | 2 | 1.5 |" in lines
    assert "40.0 → 60.0 (+20.0)" in lines[3]
    assert (tmp_path / "sweep" / "curves.png").stat().st_size > 1000


def test_one_run_and_a_chosen_picture(tmp_path: Path) -> None:
    write_run(tmp_path / "run", after=0.7)
    assert main([str(tmp_path / "run"), "--plot", str(tmp_path / "a" / "b.png")]) == 0
    assert (tmp_path / "a" / "b.png").is_file()


def test_folders_without_a_finished_run_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no finished run in" in capsys.readouterr().err
    write_run(tmp_path / "broken", after=0.5)
    (tmp_path / "broken" / "metrics.jsonl").unlink()
    assert main([str(tmp_path)]) == 1
    assert "not a whole run folder" in capsys.readouterr().err
