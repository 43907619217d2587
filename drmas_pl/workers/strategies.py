"""Fabric strategies for worker groups of several ranks."""

from __future__ import annotations

from typing import Any, Literal

from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from drmas_pl.errors import ConfigError

Parallel = Literal["ddp", "fsdp2"]


def check_precision(precision: Any) -> None:
    """Refuse to learn in float16.

    Gradients of log-probs underflow in it. Loss scaling, which prevents that, would have norms, clipping and the check for finite
    gradients see scaled numbers, and AdamW's ``eps`` is 0 in weights of that type.

    Args:
        precision: As in Lightning.

    Raises:
        ConfigError: It computes gradients in float16.
    """
    if str(precision) in ("16", "16-mixed", "16-true", "transformer-engine-float16"):
        raise ConfigError(
            f"trainer.precision={precision} cannot be trained with: gradients are neither scaled nor safe from underflow in float16; "
            "set trainer.precision=bf16-mixed or 32-true"
        )


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
