"""Callbacks that cannot work here, and Ctrl-C."""

from __future__ import annotations

import signal
import threading

import pytest
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint

from drmas_pl.errors import ConfigError
from drmas_pl.trainer.callbacks import TeamModule, check_callbacks, on_interrupt
from tests.helpers.toy import Speaker


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            ModelCheckpoint(),
            "ModelCheckpoint saves one module, a run has several groups; use checkpoint_every and keep_best",
        ),
        (EarlyStopping("loss"), "EarlyStopping needs a stock Trainer; set trainer.should_stop = True"),
    ],
)
def test_callbacks_that_steer_a_stock_trainer_are_refused(callback: Callback, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_callbacks([LambdaCallback(), callback])


def test_other_callbacks_are_welcome() -> None:
    check_callbacks([LambdaCallback(), Callback()])


def test_the_team_module_holds_the_agents() -> None:
    agents = {name: Speaker(name) for name in ("writer", "editor")}
    assert dict(TeamModule(agents).agents.items()) == agents


def test_the_first_interrupt_acts_and_the_second_one_raises() -> None:
    acted: list[int] = []
    with pytest.raises(KeyboardInterrupt), on_interrupt(lambda: acted.append(1)):
        signal.raise_signal(signal.SIGINT)
        assert acted == [1]
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and acted == [1]


def test_the_handler_before_is_restored_after_quiet_blocks() -> None:
    with on_interrupt(lambda: None):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_leave_signals_alone() -> None:
    seen: list[object] = []

    def run() -> None:
        with on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
