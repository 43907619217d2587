"""Files of a run folder: whole at any moment, readable after a crash."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from drmas_pl.errors import StorageError
from drmas_pl.trainer.run_directory import RunDirectory


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory(tmp_path / "new" / "run")
    for iteration in range(4):
        folder.append_metrics({"iteration": iteration, "train/reward": 0.25 * iteration})
    return folder


def test_places(tmp_path: Path) -> None:
    folder = RunDirectory(str(tmp_path))
    assert folder.checkpoints == tmp_path / "checkpoints" and folder.plot == tmp_path / "plot.png"
    assert folder.trajectories("validation", 90) == tmp_path / "trajectories" / "validation-000090.jsonl"
    assert folder.read_metrics() == []


def test_metrics_come_back_in_order(folder: RunDirectory) -> None:
    assert [record["iteration"] for record in folder.read_metrics()] == [0, 1, 2, 3]
    assert folder.read_metrics()[2]["train/reward"] == 0.5


def test_a_line_cut_by_a_crash_is_left_out(folder: RunDirectory) -> None:
    with folder.metrics.open("a") as file:
        file.write('{"iteration": 4, "train/rew')
    assert len(folder.read_metrics()) == 4
    folder.rewind_metrics(4, validated=True)
    folder.append_metrics({"iteration": 4})
    assert [record["iteration"] for record in folder.read_metrics()] == [0, 1, 2, 3, 4]


def test_what_is_no_record_is_left_out(folder: RunDirectory) -> None:
    with folder.metrics.open("ab") as file:
        file.write(b'[]\n7\n{"train/reward": 1}\n{"iteration": "x"}\n\xff\xfe\n' + b"[" * 100_000 + b"\n")
    assert [record["iteration"] for record in folder.read_metrics()] == [0, 1, 2, 3]


@pytest.mark.parametrize(("validated", "kept"), [(True, [0, 1, 2, 3, 3]), (False, [0, 1, 2, 3])])
def test_rewinding_drops_what_a_resumed_run_writes_again(
    folder: RunDirectory, validated: bool, kept: list[int]
) -> None:
    folder.append_metrics({"iteration": 3, "time/validation": 0.1})
    folder.append_metrics({"iteration": 4})
    folder.rewind_metrics(3, validated=validated)
    assert [record["iteration"] for record in folder.read_metrics()] == kept


def test_rewinding_an_absent_file_makes_none(tmp_path: Path) -> None:
    RunDirectory(tmp_path).rewind_metrics(3, validated=True)
    assert not list(tmp_path.iterdir())


def test_the_summary_is_replaced_whole(folder: RunDirectory) -> None:
    folder.write_summary({"after": 0.5})
    folder.write_summary({"after": 0.75})
    assert json.loads((folder.path / "summary.json").read_text()) == {"after": 0.75}
    assert not list(folder.path.glob(".writing-*"))


@pytest.mark.usefixtures("curve")
def test_the_curve_is_drawn_from_the_records(folder: RunDirectory) -> None:
    folder.append_metrics(
        {
            "iteration": 4,
            "validation/success": 0.5,
            "train/writer/calls": 1.0,
            "train/writer/amplification": 2.0,
        }
    )
    folder.write_report(["writer", "editor"], "toy")
    assert folder.plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("curve")
def test_a_run_without_records_can_be_drawn(tmp_path: Path) -> None:
    RunDirectory(tmp_path).write_report(["writer"], "toy")
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize("content", ["", "[]", "7", "[" * 100_000, None])
def test_what_is_no_summary_sums_nothing_up(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "summary.json"
    path.symlink_to("/dev/full") if content is None else path.write_text(content)
    names = ("iterations", "before", "after", "before_greedy", "after_greedy", "best")
    assert not RunDirectory(tmp_path).summarizes(dict.fromkeys(names))


def test_files_that_sum_another_state_up_are_written_again(tmp_path: Path) -> None:
    names = ("iterations", "before", "after", "before_greedy", "after_greedy", "best")
    folder, summary = RunDirectory(tmp_path), {**dict.fromkeys(names), "iterations": 3, "seconds": 1.0}
    folder.write_summary(summary)
    for path in (folder.plot, folder.page):
        assert not folder.summarizes(summary)
        path.touch()
    assert folder.summarizes({**summary, "seconds": 2.0})
    assert not folder.summarizes({**summary, "iterations": 4})


def test_named_pipes_are_not_waited_for(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    for name in ("metrics.jsonl", "summary.json"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(StorageError, match=r"metrics\.jsonl: it is a named pipe; delete it"):
        folder.append_metrics({"iteration": 1})
    with pytest.raises(StorageError, match=r"summary\.json: it is a named pipe; delete it"):
        folder.write_summary({})
