"""The benchmark of a real server, here with the small server of the tests: both ways play the same, and the table compares them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.bench_server import LockStep, main
from drmas_pl.engines.sglang import server_manager
from drmas_pl.engines.sglang.server import Server, attach
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.testing import tiny_policy, tiny_tokenizer
from drmas_pl.types import GenerationRequest, SamplingParams
from tests.helpers.fake_sglang import FakeSglang


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeSglang]]:
    """Servers that were started, each in a thread in place of a process."""
    fakes: list[FakeSglang] = []

    def launch(python: str, settings: Any, *, model: Path, version: int, client: Any, **more: Any) -> Server:
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        fakes.append(FakeSglang(policy, tiny_tokenizer(), info={"max_req_input_len": 2000}))
        fakes[-1].weight_version = str(version)
        return attach(fakes[-1].url, start_timeout=5.0, client=client)

    monkeypatch.setattr(server_manager, "launch", launch)
    yield fakes
    for fake in fakes:
        fake.close()


def test_both_ways_play_the_same_and_the_table_compares_them(
    started: list[FakeSglang], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "random:llama-tiny", "--tasks", "2", "--samples", "2", "--calls", "1", "2"]
    more = ["--cap", "4", "--repeats", "2", "--engine-python", sys.executable]
    main([*words, *more, "--out", str(tmp_path / "server.json")])
    found = json.loads((tmp_path / "server.json").read_text())
    assert found.keys() == {"lock step", "each for itself"}
    runs = [(run["calls"], run["tokens"]) for runs in found.values() for run in runs]
    assert len(runs) == 4 and len(set(runs)) == 1 and 4 <= runs[0][0] <= 8
    told = capsys.readouterr().out
    assert [line.split(":")[0] for line in told.splitlines()[:4]] == [
        "lock step",
        "each for itself",
        "each for itself",
        "lock step",
    ]
    assert "lock step takes" in told
    (fake,) = started
    assert len(fake.bodies("/update_weights_from_disk")) == 4


def test_in_lock_step_nobody_is_answered_before_everybody() -> None:
    engine = LockStep(TransformersEngine(*tiny_policy(context_length=64)))
    futures = [
        engine.submit(GenerationRequest((5, 6), SamplingParams(max_new_tokens=cap), seed=cap))
        for cap in (1, 9)
    ]
    assert engine.needs_steps
    engine.step()
    assert all(future.done() for future in futures)
