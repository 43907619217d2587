"""The iteration benchmark at toy size, with a stand-in for the other environment's python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import bench_iteration
from benchmarks.trl_iteration import reward

WORDS = [
    "--model",
    "random:llama-tiny",
    "--prompts",
    "2",
    "--samples",
    "2",
    "--prompt-tokens",
    "60",
    "--tokens",
    "4",
    "--steps",
    "2",
]


def fake_python(folder: Path, lines: str) -> str:
    """A program that stands for the python of an environment with TRL; ``job`` holds what it is given."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\nimport json, sys\njob = json.load(open(sys.argv[2]))\n{lines}\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture(autouse=True)
def restore_threads():
    """The benchmark limits itself to one thread; other tests keep theirs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_both_sides_get_the_same_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_iteration, "isolated", lambda run, *args, **kwargs: run(*args, **kwargs))
    answer = 'import os\nassert os.environ["OMP_NUM_THREADS"] == "2" and job["threads"] == 2\n'
    answer += 'assert len(job["prompts"]) == 4 and job["tokens"] == 4\nprint(json.dumps({"seconds": [9, 5], "peak_gb": job["micro"] + 1}))'
    out = tmp_path / "iteration.json"
    bench_iteration.main(
        [
            *WORDS,
            "--only",
            "fp32",
            "--threads",
            "2",
            "--trl-python",
            fake_python(tmp_path, answer),
            "--out",
            str(out),
        ]
    )
    records, shown = json.loads(out.read_text()), capsys.readouterr().out
    assert [record["name"] for record in records] == [
        "drmas_pl",
        "drmas_pl, checkpointing",
        "TRL",
        "TRL, micro-batch 8, checkpointing",
    ]
    assert records[0]["mismatch"] < 1e-4 and len(records[0]["seconds"]) == 2
    assert records[2]["median"] == 5 and records[3]["peak_gb"] == 9
    assert "TRL, fp32" in shown


def test_a_failure_of_the_other_side_is_shown(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="TRL failed:\nno such module"):
        bench_iteration.run_trl(fake_python(tmp_path, 'sys.exit("no such module")'), {"threads": 1})


def test_one_step_is_too_few() -> None:
    with pytest.raises(SystemExit):
        bench_iteration.main([*WORDS[:-1], "1"])


def test_the_reward_reads_the_last_number() -> None:
    completions = [[{"content": text}] for text in ("3 then 12", "-12", "twelve")]
    assert reward(completions, ["12", "12", "12"]) == [1.0, 0.0, 0.0]
