"""Weights and optimizer state in the folder of a worker group or critic: whole, or in shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.models.shard_files import has_shards, read_state, read_weights, write_shards
from drmas_pl.optim import load_named_state, named_state
from drmas_pl.workers.shards import is_sharded, shard_like, shard_state, whole_state, whole_weights

Layout = Literal["whole", "shards"]


def save_state(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    folder: Path,
    *,
    layout: Layout,
    fabric: Fabric,
    write_whole: Callable[[Mapping[str, Tensor] | None], object],
) -> bool:
    """Write weights and optimizer state; every rank has to call it.

    Args:
        module: Whose weights.
        optimizer: Its optimizer, or None where nothing is trained.
        folder: Where everything goes.
        layout: Whether a sharded module is put together on the first rank, or each rank writes its ``shards``.
        fabric: Knows the ranks.
        write_whole: Writes the whole weights; called on the first rank with the gathered ones, or None where the module has them.

    Returns:
        Whether shares were written, so that somebody has to say of which model they are.

    Raises:
        CheckpointError: A rank could not write its shares.
    """
    first = fabric.is_global_zero
    named = {} if optimizer is None else named_state(module, optimizer)
    if layout == "shards" and is_sharded(module):
        folder.mkdir(parents=True, exist_ok=True)
        write_shards(folder, module, named)
        return True
    weights = whole_weights(module, keep=first) if is_sharded(module) else None
    state = whole_state(named, keep=first)
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(weights)
        if optimizer is not None:
            torch.save(state, folder / "optimizer.pt")
    return False


def load_state(module: nn.Module, optimizer: torch.optim.Optimizer | None, folder: Path) -> None:
    """Take over what :func:`save_state` wrote, on any number of ranks; every rank has to call it.

    Raises:
        ValueError: There are no weights, or those of another model.
        SafetensorError: A file is damaged.
        CheckpointError: The adapter does not fit.
    """
    if has_shards(folder):
        read_weights(folder, module)
        named: Mapping[str, Mapping[str, Any]] = {} if optimizer is None else read_state(folder, module)
    else:
        _load_whole(module, folder)
        named = (
            {}
            if optimizer is None
            else torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu")
        )
    if optimizer is not None:
        load_named_state(module, optimizer, shard_state(named, module))


def _load_whole(module: nn.Module, folder: Path) -> None:
    """Take over whole weights, or the adapter where the module is one."""
    from safetensors.torch import load_file

    if isinstance(module, AdapterPolicy):
        module.load_adapter_file(folder)
        return
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ValueError("no model*.safetensors in it")
    saved = {name: tensor for file in files for name, tensor in load_file(file).items()}
    own = module.state_dict()
    weights = {name: shard_like(tensor, own.get(name)) for name, tensor in saved.items()}
    missing, unexpected = module.load_state_dict(weights, strict=False)
    unknown = [name for name in missing if name in dict(module.named_parameters())]
    if unexpected or unknown:
        raise ValueError(f"missing weights {unknown[:3]}, unexpected {unexpected[:3]}")
