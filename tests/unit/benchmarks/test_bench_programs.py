"""The benchmark of programs measures every way."""

from __future__ import annotations

import pytest

from benchmarks.bench_programs import main


@pytest.mark.adapters
def test_every_way_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--programs", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["plain", "endpoint", "client", "http", "tasks"]
    assert all(float(line.split()[1]) > 0 for line in lines[:4]) and lines[4] == "tasks left 0"
