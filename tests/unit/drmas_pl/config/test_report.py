"""The closing table of a run."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drmas_pl.config.report import _without_single_sources, aligned, outcome

ROWS = [
    ("metric, success = accuracy", "before", "after"),
    ("validation-greedy/source/[chain]/success", "16.7 %", "100.0 %"),
    ("validation/solver/calls", "1.43", "-"),
]


def test_a_table_for_a_file_is_plain_text() -> None:
    assert aligned(ROWS, least=7) == [
        "metric, success = accuracy                 before    after",
        "-" * 58,
        "validation-greedy/source/[chain]/success   16.7 %  100.0 %",
        "validation/solver/calls                      1.43        -",
    ]


@pytest.mark.parametrize("columns", [40, 80])
def test_a_table_in_a_terminal_folds_names_and_never_numbers(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    lines = aligned(ROWS, least=7, columns=columns)
    assert any("\x1b[1m" in line for line in lines), "the head is bold"
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    assert max(map(len, plain)) <= columns
    assert all(any(number in line for line in plain) for number in ("16.7 %", "100.0 %", "1.43"))
    names = "".join(line[: columns - 18].rstrip() for line in plain[2:])
    assert "validation-greedy/source/[chain]/success" in names.replace(" ", "")


def test_scores_of_a_single_source_are_left_out() -> None:
    one = ["a/success", "a/source/x/success", "b/source/x/success", "b/source/y/success"]
    assert _without_single_sources(one) == ["a/success", "b/source/x/success", "b/source/y/success"]


@pytest.mark.parametrize(("played", "head"), [(2, "metric  before   after"), (1, "metric  before")])
def test_the_closing_table_has_no_end_that_was_not_played(played: int, head: str, tmp_path: Path) -> None:
    summary = {"metric": "success", "logged_before": {"v/success": 0.5}, "logged_after": {"v/success": 0.75}}
    if played == 1:
        summary["logged_after"] = summary["logged_before"]
    summary |= {"iterations": 3, "seconds": 2.0, "peak_rss_mb": 1024.0}
    state = SimpleNamespace(summary=lambda team: summary, evaluations=[{}] * played, lasting=())
    folder = SimpleNamespace(plot=None, page=None, checkpoints=tmp_path)
    trainer: Any = SimpleNamespace(state=state, folder=folder, team=None)
    lines = outcome(trainer, {"output_dir": str(tmp_path)}).splitlines()
    assert re.sub(r" +", " ", lines[1]) == re.sub(r" +", " ", head)
    assert ("75.0 %" in lines[3]) == (played == 2) and "50.0 %" in lines[3]
    assert lines[5] == "3 iterations in 2.0 s, peak memory 1.0 GB"
