"""The benchmark of playing ahead on a few trajectories: what is timed, and what is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.bench_ahead import main, run

pytestmark = pytest.mark.usefixtures("without_curve")
SMALL = {"iterations": 3, "samples": 2, "width": 32}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The benchmark limits itself to one thread; other tests keep theirs."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_first_and_the_last_iteration_do_not_count() -> None:
    record = run(1, 0.0, **SMALL)
    assert len(record["seconds"]) == 1 and record["median"] == record["seconds"][0] > record["waited"] >= 0


@pytest.mark.slow
def test_latency_is_waited_for_in_turns() -> None:
    # two agents speak twice each, so that at least four batches are generated
    assert run(0, 0.01, **SMALL)["waited"] > 0.04


def test_the_table_compares_both_and_the_file_holds_all_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--latency",
        "0",
        "--iterations",
        "3",
        "--samples",
        "2",
        "--width",
        "32",
        "--out",
        str(tmp_path / "ahead.json"),
    ]
    assert main(words) == 0
    assert "in turns, s" in capsys.readouterr().out
    records = json.loads((tmp_path / "ahead.json").read_text())["records"]
    assert [(record["staleness"], record["latency"]) for record in records] == [(0, 0.0), (1, 0.0)]


def test_too_few_iterations_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--iterations", "2"])
    assert "--iterations must be at least 3, got 2" in capsys.readouterr().err
