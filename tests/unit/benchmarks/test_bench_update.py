"""The update benchmark at toy size: what it counts, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_update
from drmas_pl.algorithms.token_batch import collate
from drmas_pl.kernels.policy_logprobs import response_logprobs
from tests.helpers.wide import wide_policy


@pytest.fixture(autouse=True)
def restore_threads():
    """The benchmark limits itself to one thread; other tests keep theirs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_update, "isolated", lambda run, *args, **kwargs: run(*args, **kwargs))
    out = tmp_path / "update.json"
    words = [
        "--model",
        "random:llama-tiny",
        "--prompts",
        "2",
        "--samples",
        "2",
        "--prompt-tokens",
        "9",
        "--tokens",
        "4",
        "--repeats",
        "1",
    ]
    bench_update.main([*words, "--only", "fp32", "--out", str(out)])
    records, shown = json.loads(out.read_text()), capsys.readouterr().out
    assert [record["path"] for record in records] == list(bench_update.PATHS)
    norms = [record["grad_norm"] for record in records]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)
    assert all(record["peak_gb"] > 0 and record["roofline_gflops"] > 0 for record in records)
    assert f"{records[0]['median']:.2f}" in shown and "ours, checkpointing, fp32" in shown


@pytest.mark.slow
def test_the_compiled_path_is_timed_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_update, "isolated", lambda run, *args, **kwargs: run(*args, **kwargs))
    out = tmp_path / "update.json"
    words = [
        "--model",
        "random:llama-tiny",
        "--prompts",
        "2",
        "--samples",
        "2",
        "--prompt-tokens",
        "9",
        "--tokens",
        "4",
        "--repeats",
        "1",
    ]
    bench_update.main([*words, "--only", "fp32", "--compile", "--out", str(out)])
    records = json.loads(out.read_text())
    assert records[-1]["path"] == "ours, compiled"
    assert records[-1]["grad_norm"] == pytest.approx(records[1]["grad_norm"], rel=1e-4)


def test_the_plain_path_agrees_with_the_library() -> None:
    policy = wide_policy()
    batch = collate(
        bench_update.make_rows(300, prompts=2, samples=3, prompt_tokens=20, tokens=5),
        pad_id=0,
        denominator=1.0,
    )
    logp, entropy = bench_update.plain_logprobs(policy, batch)
    ours = response_logprobs(policy, batch, entropy="value")
    torch.testing.assert_close(logp, ours.logp, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, ours.entropy, atol=1e-5, rtol=1e-5)


def test_useful_work_counts_distinct_tokens_once() -> None:
    policy = wide_policy()
    one, two = (
        bench_update.useful_gigaflops(policy, prompts=1, samples=samples, prompt_tokens=100, tokens=1)
        for samples in (1, 2)
    )
    layers = 2 * (4 * 256 * 256 - 2 * 256 * 128 + 3 * 256 * 256)
    attention = 4 * 100**2 / 2 * 256 * 2
    assert one == pytest.approx(3 * (2 * (layers * 100 + 300 * 256) + attention) / 1e9)
    # a further response of one token adds one row of logits alone
    assert two - one == pytest.approx(3 * 2 * 300 * 256 / 1e9)
