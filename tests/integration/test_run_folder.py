"""What a finished run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.runs import run


def test_a_run_leaves_metrics_scores_curve_trajectories_and_checkpoint(tmp_path: Path) -> None:
    trainer = run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "metrics.jsonl",
        "summary.json",
        "plot.png",
        "trajectories",
        "checkpoints",
    }
    assert [record["iteration"] for record in trainer.folder.read_metrics()] == [0, 1, 2, 3, 4, 4]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["after"] == trainer.state.evaluations[-1]["sampled"] and summary["iterations"] == 4
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "checkpoints" / "last").read_text() == "iteration-000004"
