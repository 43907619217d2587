"""What a run says about its memory before it starts."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.fabric import Fabric

from drmas_pl.config.report import _without_single_sources, aligned, memory_line
from drmas_pl.trainer.settings import RolloutSettings
from tests.helpers.toy import make_groups

GIB = 2**30


def test_the_needs_are_compared_with_the_device() -> None:
    groups = make_groups(Fabric(accelerator="cpu", devices=1))
    run: Any = SimpleNamespace(groups=groups, trainer=SimpleNamespace(rollout=RolloutSettings()))
    enough = memory_line(run, 100 * GIB)
    assert enough.startswith("  needs about ") and enough.endswith("; the device has 100.0 GiB")
    assert memory_line(run, 1).endswith(": too little, try rollout.residency=one update.offload=all, "
                                        "or lower engine.max_batch_tokens or update.micro_batch_tokens")  # fmt: skip


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
