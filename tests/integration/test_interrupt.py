"""Ctrl-C: the iteration is finished, a checkpoint is written, the program goes on or ends cleanly."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult
from drmas_pl.errors import ConfigError
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.state import RunState
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import Task
from tests.helpers.pace import allowed
from tests.helpers.runs import run, same, timeless, weights
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_groups, make_trainer


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


@pytest.mark.parametrize("staleness", [0, 1])
def test_two_interrupts_end_a_run_whose_environment_hangs_in_a_thread(tmp_path: Path, staleness: Any) -> None:
    hangs, begun = threading.Event(), threading.Event()

    class Hanging(EvenEnv):
        def act(self, action: str) -> StepResult:
            begun.set()
            hangs.wait(120)
            return super().act(action)

    def press() -> None:
        begun.wait(60)
        for _ in range(2):
            time.sleep(0.3)
            pressed.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

    pressed: list[float] = []
    settings = RolloutSettings(samples=2, env_workers=2, max_staleness=staleness)
    trainer = make_trainer(tmp_path, rollout=settings, env_check=False)
    groups = make_groups(trainer.fabric, engine=lambda name, *parts: TransformersEngine(*parts, copy=True))
    presses = threading.Thread(target=press)
    presses.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(WriterEditor(Hanging()), groups, make_data(validation=None))
        assert time.perf_counter() - pressed[1] < allowed(5)
    finally:
        hangs.set()
        presses.join()


def test_an_impatient_interrupt_while_the_stopped_run_is_validated_loses_nothing(tmp_path: Path) -> None:
    class Impatient(Interrupt):
        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.iteration == 2:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, callbacks=[Impatient(2)])
    assert run(tmp_path, resume=tmp_path).iteration == 4


class Send(Callback):
    """Sends a signal to this process in one hook of one iteration."""

    def __init__(self, number: signal.Signals, iteration: int, hook: str = "on_train_batch_end") -> None:
        def send(trainer: Any, *args: Any) -> None:
            if trainer.iteration == iteration:
                signal.raise_signal(number)

        setattr(self, hook, send)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_run_is_saved_at_once_and_goes_on_as_if_nothing_had_been(
    tmp_path: Path, number: signal.Signals
) -> None:
    every = EvaluationSettings(greedy=False, every=1)
    stopped = run(tmp_path / "part", callbacks=[Send(number, 2)], evaluation=every, checkpoint_every=0)
    assert stopped.iteration == 2 and stopped.stop_signal == number
    assert stopped.state.evaluated_at == 1, "there was no time for a validation"
    resumed = run(tmp_path / "part", resume=tmp_path / "part", evaluation=every)
    whole = run(tmp_path / "whole", evaluation=every)
    assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)
    assert resumed.stop_signal is None


class Stuck(EvenEnv):
    """An environment that does not answer in the third iteration, once."""

    asked = False

    def begin(self, task: Task) -> str:
        if Stuck.asked:
            Stuck.asked = False
            time.sleep(60)
        return super().begin(task)


def test_a_rollout_that_outlasts_the_grace_is_given_up_and_played_again(tmp_path: Path) -> None:
    class Ask(Send):
        def on_rollout_start(self, trainer: Any, *args: Any) -> None:
            if trainer.iteration == 2:
                Stuck.asked = True

    callbacks = [Ask(signal.SIGTERM, 2, "on_train_batch_start")]
    began = time.monotonic()
    made = make_trainer(tmp_path / "part", callbacks=callbacks, grace_seconds=0.1, env_check=False)
    state = made.fit(WriterEditor(Stuck()), make_groups(made.fabric), make_data())
    assert time.monotonic() - began < 50 and (state.iteration, made.stop_signal) == (2, signal.SIGTERM)
    assert json.loads((tmp_path / "part" / "summary.json").read_text())["iterations"] == 2
    resumed, whole = run(tmp_path / "part", resume=tmp_path / "part"), run(tmp_path / "whole")
    assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)


def test_an_update_is_finished_before_a_terminated_run_is_saved(tmp_path: Path) -> None:
    class Slow(Send):
        def on_update_end(self, trainer: Any, *args: Any) -> None:
            if trainer.iteration == 1:
                time.sleep(0.3)

    stopped = run(
        tmp_path / "part", callbacks=[Slow(signal.SIGTERM, 1, "on_update_start")], grace_seconds=0.05
    )
    assert stopped.iteration == 2 and stopped.signals.is_over
    resumed, whole = run(tmp_path / "part", resume=tmp_path / "part"), run(tmp_path / "whole")
    assert same(weights(resumed.groups), weights(whole.groups)) and timeless(resumed) == timeless(whole)


def test_a_run_terminated_in_its_last_iteration_is_summed_up_when_it_goes_on(tmp_path: Path) -> None:
    run(tmp_path, callbacks=[Send(signal.SIGTERM, 4)])
    resumed = run(tmp_path, resume=tmp_path)
    assert resumed.state.evaluated_at == 4
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["after"] == resumed.state.evaluations[-1]["sampled"] and summary["iterations"] == 4


def test_minutes_save_beside_iterations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []

    def note(trainer: Any, **how: Any) -> None:
        saved.append(trainer.iteration)
        if trainer.iteration == 2:
            trainer.state.saved()

    monkeypatch.setattr(MultiAgentTrainer, "_save", note)
    minutes = iter([0.0, 30.0, 0.0, 29.9])
    monkeypatch.setattr(RunState, "minutes_since_save", property(lambda state: next(minutes)))
    run(tmp_path, checkpoint_minutes=30.0)
    assert saved == [2, 4], "after half an hour, and at the end"


@pytest.mark.parametrize("setting", ["checkpoint_minutes", "grace_seconds"])
@pytest.mark.parametrize("value", [-1.0, float("inf")])
def test_impossible_times_are_refused(tmp_path: Path, setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{setting} must be at least 0 and finite"):
        make_trainer(tmp_path, **{setting: value})
