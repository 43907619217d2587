"""The comparison of finished runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drmas_pl.report.live_server import ServedRuns
from drmas_pl.tools import report
from drmas_pl.tools.report import main
from tests.helpers.run_folders import write_unfinished_run


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
    assert "no run in" in capsys.readouterr().err
    write_run(tmp_path / "broken", after=0.5)
    (tmp_path / "broken" / "metrics.jsonl").unlink()
    assert main([str(tmp_path)]) == 1
    assert "not a whole run folder" in capsys.readouterr().err


def test_pages_are_written_also_of_runs_that_have_not_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_unfinished_run(tmp_path / "stopped")
    assert main([str(tmp_path / "stopped")]) == 0
    assert capsys.readouterr().out == f"page   {tmp_path}/stopped/report.html\n"
    write_run(tmp_path / "ended", after=0.7)
    assert main([str(tmp_path), "--output", str(tmp_path / "both.html"), "--megabytes", "2"]) == 0
    assert "2 runs" in (tmp_path / "both.html").read_text()
    assert not (tmp_path / "comparison.html").exists()
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "comparison.html").is_file()


def test_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "ended", after=0.7)
    assert main([str(tmp_path / "ended"), "--no-page"]) == 0
    assert not (tmp_path / "ended" / "report.html").exists()
    write_unfinished_run(tmp_path / "stopped")
    assert main([str(tmp_path / "stopped"), "--no-page"]) == 1
    assert "no finished run in" in capsys.readouterr().err


def test_runs_of_different_teams_share_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", after=0.7)
    write_run(tmp_path / "b", after=0.7)
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    summary["calls_per_agent"] = summary["calls_per_agent_before"] = {"single": 1.0}
    (tmp_path / "b" / "summary.json").write_text(json.dumps(summary))
    assert main([str(tmp_path), "--no-page"]) == 0
    assert "| – | – | 1.00 → 1.00 |" in capsys.readouterr().out


def test_an_export_is_written_also_of_runs_that_have_not_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_unfinished_run(tmp_path / "stopped")
    assert main([str(tmp_path / "stopped"), "--no-page", "--export", str(tmp_path / "export")]) == 0
    assert f"export {tmp_path}/export/runs.csv" in capsys.readouterr().out
    assert (tmp_path / "export" / "curves.svg").is_file()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "named pipe": lambda path: os.mkfifo(path),
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "nowhere": lambda path: path.symlink_to("/nowhere"),
    "nested": lambda path: path.write_text('{"a":' * 20_000 + "\n"),
    "null": lambda path: path.write_text("null\n"),
    "other values": lambda path: path.write_text('{"iteration": 1e400, "calls_per_agent": {"a": "x"}}\n'),
    "random bytes": lambda path: path.write_bytes(bytes(range(256)) * 4),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", ["config.yaml", "metrics.jsonl", "summary.json", "trajectories/train-000001.jsonl"]
)
def test_whatever_is_in_a_folder_is_shown_or_refused_in_a_line(
    tmp_path: Path,
    name: str,
    damage: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "draw_comparison", lambda *arguments: None)
    folder = tmp_path / "runs" / "run"
    write_run(folder, after=0.7)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    DAMAGES[damage](folder / name)
    code = main([str(folder), "--output", str(tmp_path / "page.html")])
    error = capsys.readouterr().err
    assert (code, error) == (0, "") or (code == 1 and error.startswith("error: ") and error.count("\n") == 1)
    runs = ServedRuns(tmp_path / "runs")
    assert runs.list_page()
    assert all(runs.page(found) and runs.version(found) for found in runs.folders())
