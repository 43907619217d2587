"""Fabric strategies for worker groups of several ranks."""

from __future__ import annotations

from typing import Any, Literal

from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

Parallel = Literal["ddp", "fsdp2"]


def make_strategy(kind: Parallel, *, ranks: int, backend: str | None = None) -> Strategy:
    """Return the strategy that trains one model on ``ranks`` ranks.

    Args:
        kind: ``ddp`` keeps the whole model on every rank, ``fsdp2`` a share of each layer's weights.
        ranks: Number of ranks.
        backend: Backend of torch.distributed; None takes the accelerator's own, ``gloo`` on CPUs.

    Raises:
        ValueError: ``kind`` is unknown.
    """
    if kind == "ddp":
        return DDPStrategy(process_group_backend=backend)
    if kind == "fsdp2":
        return ModelParallelStrategy(
            shard_layers, data_parallel_size=ranks, tensor_parallel_size=1, process_group_backend=backend
        )
    raise ValueError(f"strategy must be ddp or fsdp2, got {kind!r}")


def shard_layers(model: nn.Module, mesh: Any) -> nn.Module:
    """Shard every decoder layer of a Transformers model, and then the rest of it, over the data-parallel ranks.

    Args:
        model: Transformers model; its ``_no_split_modules`` names the classes of its layers.
        mesh: Device mesh with a dimension ``data_parallel``.
    """
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def reshard(model: nn.Module) -> None:
    """Let go of whole weights that a forward pass without backward has left behind; the next backward would miss their gradient."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
