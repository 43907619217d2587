"""Ctrl-C: the iteration is finished, a checkpoint is written, the program goes on or ends cleanly."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from tests.helpers.runs import run, same, timeless, weights


class Interrupt(Callback):
    """Presses Ctrl-C so many times in one hook of one iteration."""

    def __init__(self, iteration: int, hook: str = "on_train_batch_end", times: int = 1) -> None:
        def press(trainer: Any, *args: Any) -> None:
            if trainer.iteration == iteration:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)

        setattr(self, hook, press)


def test_an_interrupted_run_saves_returns_and_can_be_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = run(tmp_path / "part", callbacks=[Interrupt(2)])
    assert stopped.iteration == 2 and (tmp_path / "part" / "summary.json").exists()
    assert "stopping after this iteration" in caplog.text
    resumed = run(tmp_path / "part", resume=tmp_path / "part")
    whole = run(tmp_path / "whole")
    assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)


@pytest.mark.slow
def test_an_interrupt_during_the_first_validation_trains_nothing_and_can_be_resumed(tmp_path: Path) -> None:
    assert run(tmp_path / "part", callbacks=[Interrupt(0, "on_validation_start")]).iteration == 0
    resumed, whole = run(tmp_path / "part", resume=tmp_path / "part"), run(tmp_path / "whole")
    assert timeless(resumed) == timeless(whole)


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, callbacks=[Interrupt(2, times=2)])
    assert not (tmp_path / "checkpoints").exists()


def test_an_impatient_interrupt_while_the_stopped_run_is_validated_loses_nothing(tmp_path: Path) -> None:
    class Impatient(Interrupt):
        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.iteration == 2:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, callbacks=[Impatient(2)])
    assert run(tmp_path, resume=tmp_path).iteration == 4
