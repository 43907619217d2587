"""The GPU benchmark at toy size on CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.bench_update import make_rows


def test_runs_at_toy_size_on_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    shape = ["--prompts", "2", "--samples", "2", "--prompt-tokens", "20", "--tokens", "4", "--repeats", "1"]
    gpu.main(["--size", "toy", "--device", "cpu", *shape, "--out", str(out)])
    records, shown = json.loads(out.read_text()), capsys.readouterr().out
    paths = ["plain", "dense", "ours", "ours, checkpointing"]
    assert [record["name"] for record in records] == ["rollout", *(f"update, {path}" for path in paths)]
    assert records[3]["kernel"] == "pieces" and "update, ours (pieces)" in shown
    assert records[0]["tokens_per_second"] > 0
    norms = [record["gradient_norm"] for record in records[1:]]
    assert norms == pytest.approx([norms[0]] * 4, rel=0.02)
    assert f"{records[1]['seconds']:.3f}" in shown


def test_turns_go_on_where_the_last_one_ended() -> None:
    first = make_rows(500, prompts=1, samples=2, prompt_tokens=5, tokens=3)
    rows = gpu.play_on(first, turns=3, vocabulary=500)
    assert len(rows) == 6 and rows[:2] == first
    second, third = rows[2:4]
    assert (
        second.prompt_ids[:8] == first[0].prompt_ids + first[0].response_ids
        and len(second.prompt_ids) == 8 + gpu.ANSWER
    )
    assert (
        third.prompt_ids[: 8 + gpu.ANSWER + 3] == second.prompt_ids + second.response_ids
        and len(third.response_ids) == 3
    )


@pytest.mark.slow
def test_every_path_takes_turns_and_compiles(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    shape = [
        "--prompts",
        "2",
        "--samples",
        "2",
        "--prompt-tokens",
        "20",
        "--tokens",
        "4",
        "--turns",
        "2",
        "--repeats",
        "1",
    ]
    gpu.main(["--size", "toy", "--device", "cpu", *shape, "--compile", "--out", str(out)])
    records = json.loads(out.read_text())
    assert records[-1]["name"] == "update, ours, compiled"
    norms = [record["gradient_norm"] for record in records[1:]]
    assert norms == pytest.approx([norms[0]] * 5, rel=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("turns", ["1", "3"])
def test_runs_on_a_gpu(turns: str, tmp_path: Path) -> None:
    gpu.main(
        [
            "--size",
            "0.5b",
            "--device",
            "cuda",
            "--repeats",
            "1",
            "--turns",
            turns,
            "--out",
            str(tmp_path / "gpu.json"),
        ]
    )
    records = {record["name"]: record for record in json.loads((tmp_path / "gpu.json").read_text())}
    plain, ours = records["update, plain"], records["update, ours"]
    assert ours["kernel"] == "blocks"
    norms = [record["gradient_norm"] for record in records.values() if "gradient_norm" in record]
    assert (
        norms == pytest.approx([plain["gradient_norm"]] * 5, rel=0.05) and ours["peak_gb"] < plain["peak_gb"]
    )
