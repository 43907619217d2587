"""The rollout benchmark at toy size, with stand-ins for the pythons of other environments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import bench_rollout
from benchmarks.bench_rollout import make_requests, render, run_other, run_ours
from benchmarks.other_rollouts import transformers
from drmas_pl.models.loading import load_model
from drmas_pl.testing import tiny_policy

JOB = {"prompts": [[5, 6, 7, 8], [9, 8, 7, 6]], "samples": 3, "tokens": 4, "repeats": 2, "dtype": "float32"}


@pytest.fixture(autouse=True)
def restore_threads():
    """The benchmark limits itself to one thread; other tests keep theirs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder with a tiny model and its tokenizer."""
    for part in tiny_policy(context_length=256):
        part.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def fake_python(folder: Path, lines: str) -> str:
    """A program that stands for the python of another environment; ``name`` and ``job`` hold what it is given."""
    program = folder / "python"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nname, job = sys.argv[2], json.load(open(sys.argv[3]))\n{lines}\n"
    )
    program.chmod(0o755)
    return str(program)


def test_our_samples_have_the_trainers_log_probs(folder: str) -> None:
    record = run_ours({**JOB, "model": folder})
    assert record["tokens"] == 2 * 3 * 4 and len(record["seconds"]) == 3
    assert record["mismatch"] < 1e-5


def test_a_wrong_log_prob_is_noticed(folder: str) -> None:
    model, tokenizer = load_model(folder)
    requests = make_requests(JOB, seed=0)
    completions = bench_rollout.TransformersEngine(model, tokenizer).generate(requests)
    torch.nn.init.normal_(model.lm_head.weight)
    assert bench_rollout.mismatch(model, requests, completions) > 0.01


def test_every_sample_has_a_seed_of_its_own_in_every_run() -> None:
    seeds = [request.seed for run in range(3) for request in make_requests(JOB, seed=run)]
    assert len(set(seeds)) == len(seeds) == 18


def test_transformers_samples_as_many_tokens(folder: str) -> None:
    record = transformers({**JOB, "model": folder})
    assert record["tokens"] == 2 * 3 * 4 and len(record["seconds"]) == 3 and min(record["seconds"]) >= 0


def test_all_engines_get_the_same_work(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setattr(bench_rollout, "isolated", lambda run, *args: run(*args))
    lines = (
        'assert len(job["prompts"]) == 2 and len(job["prompts"][0]) == 70 and job["tokens"] == 4\n'
        'assert job["gguf"] == ("x.gguf" if job["dtype"] == "float32" else None)\n'
        'print(json.dumps({"seconds": [9.0, 8.0, {"vllm": 2.0, "llama": 4.0}[name]], "tokens": 2 * job["samples"] * 4}))'
    )
    python, out = fake_python(tmp_path, lines), tmp_path / "rollout.json"
    words = [
        "--model",
        folder,
        "--shapes",
        "2x2",
        "2x3",
        "--prompt-tokens",
        "70",
        "--tokens",
        "4",
        "--repeats",
        "2",
    ]
    words += [
        "--transformers-python",
        "",
        "--vllm-python",
        python,
        "--llama-python",
        python,
        "--gguf-fp32",
        "x.gguf",
    ]
    bench_rollout.main([*words, "--out", str(out)])
    records, shown = json.loads(out.read_text()), capsys.readouterr().out
    cases = [(record["name"], record["precision"], record["samples"]) for record in records]
    fp32 = [(name, "fp32", samples) for samples in (2, 3) for name in ("drmas_pl", "vLLM", "llama.cpp")]
    assert cases == fp32 + [(name, "bf16", samples) for samples in (2, 3) for name in ("drmas_pl", "vLLM")]
    assert records[1]["rate"] == 16 / 5 and records[0]["mismatch"] < 1e-5
    assert shown.splitlines()[3].split()[:4] == ["llama.cpp", "fp32", "2", "x"]


def test_ratios_compare_equal_cases_alone() -> None:
    case = {"precision": "fp32", "prompts": 4, "samples": 8}
    other = {**case, "precision": "bf16"}
    records = [
        {"name": "drmas_pl", "rate": 300, **case},
        {"name": "vLLM", "rate": 200, **case},
        {"name": "drmas_pl", "rate": 9, **other},
    ]
    assert [line.split()[-2] for line in render(records).splitlines()[1:]] == ["1.00", "1.50", "1.00"]


def test_a_failure_of_another_library_is_shown(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="vLLM failed:\nno such module"):
        run_other(fake_python(tmp_path, 'sys.exit("no such module")'), "vllm", {})


def test_an_engine_that_stops_early_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_rollout, "isolated", lambda run, *args: {"seconds": [1.0, 1.0], "tokens": 23})
    with pytest.raises(SystemExit, match="drmas_pl sampled 23 tokens, expected 24"):
        bench_rollout.measure({**JOB, "precisions": ["fp32"]}, [(2, 3)], {}, {})


def test_wrong_log_probs_are_refused_in_full_precision_alone() -> None:
    record = {"tokens": 24, "mismatch": 2e-4}
    bench_rollout.check_record("drmas_pl", record, tokens=24, exact=False)
    with pytest.raises(SystemExit, match=r"differ by 0\.0002 from the trainer's, more than 0\.0001"):
        bench_rollout.check_record("drmas_pl", record, tokens=24, exact=True)


def test_prompts_that_cannot_be_made_equally_long_are_refused(folder: str) -> None:
    with pytest.raises(SystemExit):
        bench_rollout.main(["--model", folder, "--shapes", "9x2", "--prompt-tokens", "10"])
