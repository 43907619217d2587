"""The line a person sees, how often without a terminal, and the bar in one."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from drmas_pl.trainer.callbacks import ProgressBar, describe
from drmas_pl.trainer.diagnosis import Finding

METRICS = {"train/reward": 0.5, "train/a/calls": 1.25, "train/b/calls": 2.0, "train/a/grad_norm": 0.4}


def follow(bar: ProgressBar, iterations: int, first: int = 1, causes: Sequence[str] = ()) -> None:
    """Show a run of so many iterations that something keeps from learning."""
    trainer: Any = SimpleNamespace(
        iteration=first - 1,
        max_iterations=iterations,
        agents={"a": None, "b": None},
        state=SimpleNamespace(diagnoses=[Finding("", cause=cause) for cause in causes]),
    )
    bar.on_train_start(trainer, None)
    for iteration in range(first, iterations + 1):
        trainer.iteration = iteration
        bar.on_train_batch_end(trainer, None, METRICS, (), iteration - 1)
    bar.on_train_end(trainer, None)


def test_the_line_holds_reward_calls_and_the_norms_there_are() -> None:
    assert describe(METRICS, ["a", "b"]) == "reward 0.50 | calls a 1.2 b 2.0 | grad a 0.40"
    assert describe({}, ["a"]) == "reward - | calls a 0.0"


@pytest.mark.parametrize(
    ("iterations", "lines", "shown"),
    [(3, 20, [1, 2, 3]), (100, 4, [25, 50, 75, 100]), (10, 4, [2, 4, 6, 8, 10])],
)
def test_without_a_terminal_some_lines_are_logged(
    caplog: pytest.LogCaptureFixture, iterations: int, lines: int, shown: list[int]
) -> None:
    with caplog.at_level(logging.INFO):
        follow(ProgressBar(lines=lines), iterations)
    assert [record.args[0] for record in caplog.records] == shown  # type: ignore[index]
    assert (
        caplog.messages[-1]
        == f"iteration {iterations}/{iterations}  reward 0.50 | calls a 1.2 b 2.0 | grad a 0.40"
    )


def test_the_line_says_what_keeps_an_iteration_from_learning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        follow(ProgressBar(), 1, causes=["all agents frozen", "all rewards equal"])
    assert caplog.messages[0].endswith("grad a 0.40 | all agents frozen | all rewards equal")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_a_bar_moves_from_the_resumed_iteration(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with caplog.at_level(logging.INFO):
        follow(ProgressBar(), 5, first=4)
    assert (
        "3/5" in terminal.getvalue() and "5/5" in terminal.getvalue() and "reward 0.50" in terminal.getvalue()
    )
    assert not caplog.messages


def test_an_exception_closes_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = ProgressBar()
    trainer: Any = SimpleNamespace(iteration=0, max_iterations=2, agents={})
    bar.on_train_start(trainer, None)
    assert bar._bar is not None
    bar.on_exception(trainer, None, RuntimeError())
    assert bar._bar is None
