"""Callbacks that cannot work here, and Ctrl-C."""

from __future__ import annotations

import pytest
from lightning.pytorch.callbacks import Callback, LambdaCallback, ModelCheckpoint

from drmas_pl.errors import ConfigError
from drmas_pl.trainer.callbacks import check_callbacks
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
