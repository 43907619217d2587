"""The HTTP benchmark: every library gets its answers, the record and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_http


def test_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "http.json"
    bench_http.main(["--requests", "8", "--single", "2", "--delay", "0.01", "--out", str(out)])
    records = json.loads(out.read_text())
    assert {(one["client"], one["concurrent"], one["requests"]) for one in records} >= {
        (name, concurrent, requests)
        for name in ("aiohttp", "urllib3")
        for concurrent, requests in ((8, 8), (1, 2))
    }
    assert len(capsys.readouterr().out.splitlines()) == len(records)
    assert all(one["seconds"] > 0 and one["threads"] >= 1 for one in records)
