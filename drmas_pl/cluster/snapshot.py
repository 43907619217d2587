"""The state of a group between two iterations, from which it goes on after a rank was lost.

Every rank of a sharded group writes its own share, otherwise the first rank writes for all. Not a checkpoint: it fits the same number
of ranks alone. The folder must be on storage that all nodes of the cluster see.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from drmas_pl.optim import load_named_state, named_state
from drmas_pl.workers.group import WorkerGroup
from drmas_pl.workers.shards import from_share, is_sharded, own_share

COUNTERS = ("weights_version", "steps", "skipped_in_a_row")


def keep_state(group: WorkerGroup, folder: Path) -> None:
    """Write this rank's part of the group's weights, optimizer state and counters."""
    if not (is_sharded(group.policy) or group.fabric.is_global_zero):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with group.offload.present("weights", "optimizer"):
        optimizer = {} if group.optimizer is None else named_state(group.policy, group.optimizer)
        state = {
            "weights": {name: own_share(tensor.detach()) for name, tensor in group.policy.state_dict().items()},
            "optimizer": {name: {key: _own(value) for key, value in values.items()} for name, values in optimizer.items()},
            "counters": {name: getattr(group, name) for name in COUNTERS},
        }
        torch.save(state, folder / _file(group))


@torch.no_grad()
def restore_state(group: WorkerGroup, folder: Path) -> None:
    """Take over what :func:`keep_state` wrote; every rank of the group has to call it."""
    state = torch.load(folder / _file(group), weights_only=True, map_location="cpu")
    parameters = dict(group.policy.named_parameters())
    with group.offload.present("weights", "optimizer"):
        for name, tensor in group.policy.state_dict().items():
            own_share(tensor.detach()).copy_(state["weights"][name])
        if group.optimizer is not None:
            named = {
                name: {key: from_share(value, parameters[name]) for key, value in values.items()}
                for name, values in state["optimizer"].items()
            }
            load_named_state(group.policy, group.optimizer, named)
    for name, value in state["counters"].items():
        setattr(group, name, value)
    group.engine.sync(group.weights_version)


def _file(group: WorkerGroup) -> str:
    return f"rank{group.fabric.global_rank if is_sharded(group.policy) else 0}.pt"


def _own(value: Any) -> Any:
    return own_share(value) if isinstance(value, torch.Tensor) else value
