"""Which callbacks fit this loop, and the module they are handed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping
from torch import nn

from drmas_pl.agent import Agent
from drmas_pl.errors import ConfigError


class TeamModule(L.LightningModule):
    """All agents of a run as one module, handed to callbacks as ``pl_module``.

    Args:
        agents: Agents by name.
    """

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        super().__init__()
        self.agents = nn.ModuleDict(agents)


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuse Lightning's callbacks that steer a stock Trainer and cannot work here.

    Raises:
        ConfigError: A stock checkpoint or early-stopping callback was passed.
    """
    for callback in callbacks:
        if isinstance(callback, Checkpoint):
            raise ConfigError(
                f"{type(callback).__name__} saves one module, a run has several groups; use checkpoint_every and keep_best"
            )
        if isinstance(callback, EarlyStopping):
            raise ConfigError(
                "EarlyStopping needs a stock Trainer; set trainer.should_stop = True in on_validation_end instead"
            )


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` on the first Ctrl-C inside the block; the second one raises KeyboardInterrupt at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        act()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
