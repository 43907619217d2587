"""Callbacks that cannot work here, and Ctrl-C."""

from __future__ import annotations

import signal
import threading

import pytest
from lightning.pytorch.callbacks import Callback, LambdaCallback, ModelCheckpoint

from drmas_pl.errors import ConfigError
from drmas_pl.trainer.callbacks import check_callbacks, on_interrupt
from drmas_pl.trainer.lightning_api import TeamModule
from tests.helpers.toy import Speaker


def test_callbacks_that_steer_a_stock_trainer_are_refused() -> None:
    """All of them: tests/integration/test_lightning_callbacks.py."""

    class Mine(ModelCheckpoint):
        pass

    with pytest.raises(
        ConfigError,
        match="Mine saves one module, a run has several groups; use checkpoint_every and keep_best",
    ):
        check_callbacks([LambdaCallback(), Mine()])


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
