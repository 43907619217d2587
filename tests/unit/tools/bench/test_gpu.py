"""The GPU benchmark at toy size on CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.tools.bench import gpu


def test_runs_at_toy_size_on_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    shape = ["--prompts", "2", "--samples", "2", "--prompt-tokens", "20", "--tokens", "4", "--repeats", "1"]
    gpu.main(["--size", "toy", "--device", "cpu", *shape, "--out", str(out)])
    records, shown = json.loads(out.read_text()), capsys.readouterr().out
    assert [record["name"] for record in records] == ["rollout", "update, plain", "update, ours", "update, ours, checkpointing"]
    assert records[0]["tokens_per_second"] > 0
    norms = [record["gradient_norm"] for record in records[1:]]
    assert norms == pytest.approx([norms[0]] * 3, rel=0.02)
    assert f"{records[1]['seconds']:.3f}" in shown


@pytest.mark.gpu
def test_runs_on_a_gpu(tmp_path: Path) -> None:
    gpu.main(["--size", "0.5b", "--device", "cuda", "--repeats", "1", "--out", str(tmp_path / "gpu.json")])
    records = json.loads((tmp_path / "gpu.json").read_text())
    plain, ours = records[1:3]
    assert ours["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=0.05) and ours["peak_gb"] < plain["peak_gb"]
