"""Activation checkpointing: layers are computed again in backward, so that only what stands between them is kept."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from drmas_pl.errors import ConfigError
from drmas_pl.packed.mode import running_mode


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


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of the first computation and of the second one, which must meet the same answers."""
    return nullcontext(), running_mode() or nullcontext()
