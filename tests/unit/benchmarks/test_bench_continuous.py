"""The benchmark of continuous batching at toy size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_continuous
from benchmarks.bench_continuous import continuous, lock_step, main, make_trajectories, render, run
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.testing import tiny_policy

JOB = {
    "dtype": "float32",
    "tasks": 2,
    "samples": 2,
    "prompt": 5,
    "observation": 3,
    "cap": 6,
    "mean": 4,
    "repeats": 1,
    "concurrent": 3,
}


@pytest.fixture(autouse=True)
def restore_threads():
    """The benchmark limits itself to one thread; other tests keep theirs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_both_schedules_play_every_turn_with_the_same_responses() -> None:
    policy, tokenizer = tiny_policy(context_length=256)
    played = []
    for mode in (lock_step, continuous):
        trajectories = make_trajectories(JOB, policy.config.vocab_size)
        mode(TransformersEngine(policy, tokenizer), trajectories, 3)
        assert all(each.ended for each in trajectories)
        played.append([each.responses for each in trajectories])
    assert played[0] == played[1]


def test_a_record_has_both_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in tiny_policy(context_length=256):
        part.save_pretrained(tmp_path / "model")
    record = run({**JOB, "model": str(tmp_path / "model")})
    assert record["equal"] == 1.0 and {len(mode["seconds"]) for mode in record["modes"].values()} == {1}
    lines = render([{**JOB, **record}]).splitlines()
    assert lines[1].startswith("lock step") and lines[2].startswith("continuous")
    monkeypatch.setattr(bench_continuous, "isolated", lambda run, job: record)
    main(["--concurrent", "2", "4", "--out", str(tmp_path / "out.json")])
    assert [found["concurrent"] for found in json.loads((tmp_path / "out.json").read_text())] == [2, 4]


def test_rates_are_compared_with_lock_step() -> None:
    modes = {
        "lock step": {"seconds": [4.0, 2.0, 9.0], "tokens": 100, "responses": 10},
        "continuous": {"seconds": [2.0], "tokens": 100, "responses": 10},
    }
    text = render([{"concurrent": 8, "modes": modes, "equal": 0.5}])
    assert text.splitlines()[2].split() == ["continuous", "8", "100", "10", "50", "2.00", "50%"]
