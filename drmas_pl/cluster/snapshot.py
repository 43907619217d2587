"""The state of a group or critic between two iterations, from which it goes on after a rank was lost.

Every rank of a sharded one writes its own share, otherwise the first rank writes for all. Not a checkpoint: it fits the same number
of ranks alone. The folder must be on storage that all nodes of the cluster see.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.optim import load_named_state, named_state
from drmas_pl.workers.critic import ValueWorker
from drmas_pl.workers.group import PolicyWorker
from drmas_pl.workers.shards import from_share, is_sharded, own_share

Member = PolicyWorker | ValueWorker
COUNTERS = ("steps", "skipped_in_a_row")
GROUP_COUNTERS = ("weights_version", *COUNTERS)


def keep_state(group: Member, folder: Path) -> None:
    """Write this rank's part of the weights, optimizer state and counters."""
    model = _model(group)
    if not (is_sharded(model) or group.fabric.is_global_zero):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with group.offload.present("weights", "optimizer"):
        optimizer = {} if group.optimizer is None else named_state(model, group.optimizer)
        state = {
            "weights": {name: own_share(tensor.detach()) for name, tensor in _weights(model).items()},
            "optimizer": {
                name: {key: _own(value) for key, value in values.items()}
                for name, values in optimizer.items()
            },
            "counters": {name: getattr(group, name) for name in _counters(group)},
        }
        torch.save(state, folder / _file(group))


@torch.no_grad()
def restore_state(group: Member, folder: Path) -> None:
    """Take over what :func:`keep_state` wrote; every rank has to call it."""
    model = _model(group)
    state = torch.load(folder / _file(group), weights_only=True, map_location="cpu")
    parameters = dict(model.named_parameters())
    with group.offload.present("weights", "optimizer"):
        for name, tensor in _weights(model).items():
            own_share(tensor.detach()).copy_(state["weights"][name])
        if group.optimizer is not None:
            named = {
                name: {key: from_share(value, parameters[name]) for key, value in values.items()}
                for name, values in state["optimizer"].items()
            }
            load_named_state(model, group.optimizer, named)
        for name in _counters(group):
            setattr(group, name, state["counters"][name])
        if isinstance(group, PolicyWorker):
            group.engine.sync(group.weights_version)


def _model(group: Member) -> nn.Module:
    return group.policy if isinstance(group, PolicyWorker) else group.model


def _counters(group: Member) -> tuple[str, ...]:
    return GROUP_COUNTERS if isinstance(group, PolicyWorker) else COUNTERS


def _weights(model: nn.Module) -> Mapping[str, Tensor]:
    """Return what may have changed: of an adapter its own weights alone, and nothing of the base without one."""
    if isinstance(model, AdapterPolicy):
        return {} if model.adapter is None else dict(model.named_parameters())
    state: Mapping[str, Tensor] = model.state_dict()
    return state


def _file(group: Member) -> str:
    return f"rank{group.fabric.global_rank if is_sharded(_model(group)) else 0}.pt"


def _own(value: Any) -> Any:
    return own_share(value) if isinstance(value, Tensor) else value
