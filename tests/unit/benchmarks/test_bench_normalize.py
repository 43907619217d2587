"""The normaliser benchmark: agreement of its three codes, its record and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_normalize


@pytest.fixture(autouse=True)
def restore_threads():
    """The benchmark limits itself to one thread; other tests keep theirs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "normalize.json"
    bench_normalize.main(["--rows", "2000", "--groups", "100", "--repeats", "1", "--out", str(out)])
    record = json.loads(out.read_text())
    table = capsys.readouterr().out
    assert record["rows"] == 2000 and record["groups"] == 100
    assert f"{record['library_seconds']:.3f}" in table and "2,000 rows in 100 groups" in table
    assert record["largest_difference"] < 1e-3


def test_slow_codes_agree_with_the_library() -> None:
    data = bench_normalize.make_rows(400, 40, seed=1)
    expected = bench_normalize.normalize_rows(*data)
    torch.testing.assert_close(bench_normalize.loop_over_tensors(*data), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(bench_normalize.loop_over_floats(*data), expected, atol=1e-4, rtol=1e-4)


def test_the_table_says_whether_the_goal_was_met() -> None:
    record = {"rows": 10, "groups": 2, "library_seconds": 0.1, "largest_difference": 0.0}
    record |= {
        "float_loop_seconds": 1.0,
        "float_loop_speedup": 10.0,
        "tensor_loop_seconds": 6.0,
        "tensor_loop_speedup": 60.0,
    }
    assert bench_normalize.render(record).endswith("met")
    assert bench_normalize.render(record | {"tensor_loop_speedup": 40.0}).endswith("missed")
    assert bench_normalize.render(record | {"library_seconds": 0.6}).endswith("missed")
