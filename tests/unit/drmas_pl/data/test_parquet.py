"""Trajectories as Parquet: every column, nulls, and many of them in little memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from drmas_pl.data import parquet as module
from drmas_pl.data.parquet import trajectory_schema, write_parquet
from drmas_pl.types import Trajectory
from tests.helpers.progress import conversation


def played() -> Trajectory:
    first = conversation("Paris \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"))
    turns = (replace(first.turns[0], advantage=0.5, prompt="Q"), first.turns[1])
    return replace(first, turns=turns, metrics={"hops": 2.0}, phase="train", iteration=3, mode="sampled")


def test_columns_hold_what_was_played(tmp_path: Path) -> None:
    assert write_parquet(tmp_path / "a" / "train.parquet", [played()]) == 1
    table = parquet.read_table(tmp_path / "a" / "train.parquet")
    assert table.schema.equals(trajectory_schema())
    (row,) = table.to_pylist()
    assert row["task_id"] == "geo-1" and row["reference"] == ["Paris"] and row["metadata"] == "{}"
    assert (
        row["metrics"] == [{"name": "hops", "value": 2.0}] and row["success"] is True and row["cause"] is None
    )
    assert (row["phase"], row["iteration"], row["sample"], row["mode"]) == ("train", 3, 0, "sampled")
    first, second = row["turns"]
    assert first["advantage"] == 0.5 and first["prompt"] == "Q" and first["response_ids"] == [2, 3]
    assert first["logprobs"] == [-0.1, -0.2] and first["action"] == "<search>capital of France</search>"
    assert second["advantage"] is None and second["text"] == "Paris 😀"


def test_rows_are_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_GROUP", 4)
    assert write_parquet(tmp_path / "x.parquet", (played() for _ in range(10))) == 10
    assert parquet.ParquetFile(tmp_path / "x.parquet").num_row_groups == 3
    assert write_parquet(tmp_path / "none.parquet", []) == 0
    assert parquet.read_table(tmp_path / "none.parquet").num_rows == 0


def test_datasets_reads_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hub")
    write_parquet(tmp_path / "train.parquet", [played(), played()])
    loaded = datasets.Dataset.from_parquet(str(tmp_path / "train.parquet"), cache_dir=str(tmp_path / "cache"))
    assert len(loaded) == 2 and loaded[1]["turns"][0]["agent"] == "search"
