"""Whole runs of the toy team, and what of two runs must be equal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.toy import EvenEnv, WriterEditor, make_data, make_groups, make_trainer

Weights = dict[str, dict[str, Tensor]]


class StopAt(Callback):
    """Asks for a stop after so many iterations."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.should_stop = trainer.iteration == self.iteration


def run(
    folder: Path,
    *,
    resume: Path | None = None,
    groups: Mapping[str, Any] | None = None,
    data: Any = None,
    **trainer: Any,
) -> MultiAgentTrainer:
    """Play a whole run, or the rest of one."""
    made = make_trainer(folder, **trainer)
    made.fit(
        WriterEditor(EvenEnv()),
        make_groups(made.fabric, **(groups or {})),
        data or make_data(),
        ckpt_path=resume,
    )
    return made


def weights(groups: Mapping[str, PolicyWorker]) -> Weights:
    return {
        name: {key: p.detach().clone() for key, p in group.policy.named_parameters()}
        for name, group in groups.items()
    }


def same(first: Weights, second: Weights) -> bool:
    """Compare bit for bit."""
    return first.keys() == second.keys() and all(
        torch.equal(p, second[name][key]) for name, own in first.items() for key, p in own.items()
    )


def timeless(trainer: MultiAgentTrainer) -> list[dict[str, Any]]:
    """Metrics of a run without what the clock decides."""
    return [
        {k: v for k, v in record.items() if not k.startswith("time/")}
        for record in trainer.folder.read_metrics()
    ]
