"""The state of a group or critic between two iterations, from which it goes on after a rank was lost.

Every rank of a sharded one writes its own share, otherwise the first rank writes for all. Not a checkpoint: it fits the same number
of ranks alone. The folder must be on storage that all nodes of the cluster see.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.optim import load_named_state, named_state
from drmas_pl.workers.shards import from_share, is_sharded, own_share


def write_snapshot(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    counters: Mapping[str, int],
    *,
    fabric: Fabric,
) -> None:
    """Write this rank's part of weights and optimizer state, which must be on their device, and the counters."""
    if not (is_sharded(model) or fabric.is_global_zero):
        return
    folder.mkdir(parents=True, exist_ok=True)
    named = {} if optimizer is None else named_state(model, optimizer)
    state = {
        "weights": {name: own_share(tensor.detach()) for name, tensor in _weights(model).items()},
        "optimizer": {
            name: {key: _own(value) for key, value in values.items()} for name, values in named.items()
        },
        "counters": dict(counters),
    }
    torch.save(state, folder / _file(model, fabric))


@torch.no_grad()
def read_snapshot(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, *, fabric: Fabric
) -> dict[str, int]:
    """Take over what :func:`write_snapshot` wrote and return the counters; every rank has to call it."""
    state = torch.load(folder / _file(model, fabric), weights_only=True, map_location="cpu")
    parameters = dict(model.named_parameters())
    for name, tensor in _weights(model).items():
        own_share(tensor.detach()).copy_(state["weights"][name])
    if optimizer is not None:
        named = {
            name: {key: from_share(value, parameters[name]) for key, value in values.items()}
            for name, values in state["optimizer"].items()
        }
        load_named_state(model, optimizer, named)
    counters: dict[str, int] = state["counters"]
    return counters


def _weights(model: nn.Module) -> Mapping[str, Tensor]:
    """Return what may have changed: of an adapter its own weights alone, and nothing of the base without one."""
    if isinstance(model, AdapterPolicy):
        return {} if model.adapter is None else dict(model.named_parameters())
    state: Mapping[str, Tensor] = model.state_dict()
    return state


def _file(model: nn.Module, fabric: Fabric) -> str:
    return f"rank{fabric.global_rank if is_sharded(model) else 0}.pt"


def _own(value: Any) -> Any:
    return own_share(value) if isinstance(value, Tensor) else value
