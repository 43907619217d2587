"""Activation checkpointing: layers are computed again in backward, so that only what stands between them is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn

from drmas_pl.errors import ConfigError
from drmas_pl.kernels.packed_mode import running_mode


def checkpoint_activations(policy: nn.Module) -> None:
    """Make the layers of a policy keep their inputs alone while it trains; results and gradients stay the same.

    Args:
        policy: A Transformers model, possibly wrapped by PEFT.

    Raises:
        ConfigError: The model does not support it.
    """
    model: Any = policy
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"{type(policy).__name__} cannot recompute its layers; set update.activation_checkpointing=false"
        )
    settings = {"use_reentrant": False, "context_fn": _contexts}
    # the name since Transformers 5, and the one before
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(settings)
    else:
        model.gradient_checkpointing_enable(settings)


@contextmanager
def recomputing(policy: nn.Module) -> Iterator[None]:
    """Let the layers of a policy in evaluation mode be computed again in backward, which Transformers does in training mode alone.

    A layer is in training mode when it decides whether to keep anything, and in evaluation mode while it computes.
    """
    layers = [module for module in _checkpointed(policy) if not list(_checkpointed(*module.children()))]
    checkpoints = [layer._gradient_checkpointing_func for layer in layers]
    for layer, checkpoint in zip(layers, checkpoints):
        layer._gradient_checkpointing_func = partial(_evaluated, layer, checkpoint)
        layer.training = True
    try:
        yield
    finally:
        for layer, checkpoint in zip(layers, checkpoints):
            layer._gradient_checkpointing_func = checkpoint
            layer.training = False


def _checkpointed(*modules: nn.Module) -> Iterator[Any]:
    """Yield the modules, and those within, that checkpoint themselves or their layers."""
    return (
        part
        for module in modules
        for part in module.modules()
        if getattr(part, "gradient_checkpointing", False)
    )


def _evaluated(
    layer: nn.Module, checkpoint: Callable[..., Any], compute: Callable[..., Any], *args: Any
) -> Any:
    """Checkpoint a layer that computes in evaluation mode, also the second time."""

    def computed(*inputs: Any) -> Any:
        layer.training = False
        try:
            return compute(*inputs)
        finally:
            layer.training = True

    return checkpoint(computed, *args)


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of the first computation and of the second one, which must meet the same answers."""
    return nullcontext(), running_mode() or nullcontext()
