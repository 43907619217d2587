"""The state of a group or critic between two iterations, from which it goes on after a rank was lost.

Every rank of a sharded one writes its own share, otherwise the first rank writes for all. Not a checkpoint: it fits the same number
of ranks alone. The folder must be on storage that all nodes of the cluster see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.optim import load_named_state, named_state
from drmas_pl.workers.learner import LearnerCounters
from drmas_pl.workers.offload import WorkerOffload
from drmas_pl.workers.shards import from_share, is_sharded, own_share


class Restorable(Protocol):
    """What a worker consists of that can go back to a snapshot.

    Attributes:
        model: Its weights.
        optimizer: Its optimizer, or None.
        offload: Brings weights and optimizer state to the device.
        fabric: Knows the ranks.
        counters: What it counts.
    """

    # read-only, so that a worker may declare more exact types
    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer | None: ...

    @property
    def offload(self) -> WorkerOffload: ...

    @property
    def fabric(self) -> Fabric: ...

    @property
    def counters(self) -> LearnerCounters: ...

    def restore_counters(self, found: Mapping[str, int]) -> None:
        """Go on counting from what was saved."""
        ...

    def take_over(self) -> None:
        """Bring what generates up to date with the weights."""
        ...


def write_snapshot(worker: Restorable, folder: Path) -> None:
    """Write this rank's part of the weights, optimizer state and counters."""
    model = worker.model
    if not (is_sharded(model) or worker.fabric.is_global_zero):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with worker.offload.present("weights", "optimizer"):
        optimizer = {} if worker.optimizer is None else named_state(model, worker.optimizer)
        state = {
            "weights": {name: own_share(tensor.detach()) for name, tensor in _weights(model).items()},
            "optimizer": {
                name: {key: _own(value) for key, value in values.items()}
                for name, values in optimizer.items()
            },
            "counters": asdict(worker.counters),
        }
        torch.save(state, folder / _file(worker))


@torch.no_grad()
def read_snapshot(worker: Restorable, folder: Path) -> None:
    """Take over what :func:`write_snapshot` wrote; every rank has to call it."""
    model = worker.model
    state = torch.load(folder / _file(worker), weights_only=True, map_location="cpu")
    parameters = dict(model.named_parameters())
    with worker.offload.present("weights", "optimizer"):
        for name, tensor in _weights(model).items():
            own_share(tensor.detach()).copy_(state["weights"][name])
        if worker.optimizer is not None:
            named = {
                name: {key: from_share(value, parameters[name]) for key, value in values.items()}
                for name, values in state["optimizer"].items()
            }
            load_named_state(model, worker.optimizer, named)
        worker.restore_counters(state["counters"])
        worker.take_over()


def _weights(model: nn.Module) -> Mapping[str, Tensor]:
    """Return what may have changed: of an adapter its own weights alone, and nothing of the base without one."""
    if isinstance(model, AdapterPolicy):
        return {} if model.adapter is None else dict(model.named_parameters())
    state: Mapping[str, Tensor] = model.state_dict()
    return state


def _file(worker: Restorable) -> str:
    return f"rank{worker.fabric.global_rank if is_sharded(worker.model) else 0}.pt"


def _own(value: Any) -> Any:
    return own_share(value) if isinstance(value, Tensor) else value
