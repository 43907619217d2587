"""Optimizer settings of a worker group and the learning-rate schedule over its known number of steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from drmas_pl.utils.validation import check_fields

# parameters from which on a fused step is worth another rounding
_MIN_FUSED = 10_000_000


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW and its schedule.

    Attributes:
        lr: Peak learning rate.
        betas: Decay rates of the moment estimates.
        eps: Added to the denominator of the update.
        weight_decay: Decoupled weight decay.
        schedule: Shape after warm-up: ``constant``, ``cosine`` or ``linear`` decay to zero at the last step.
        warmup_ratio: Share of all optimizer steps during which the rate rises linearly from 0.
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_ratio: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "betas", (float(self.betas[0]), float(self.betas[1])))
        if not self.lr > 0:
            raise ValueError(
                f"lr must be positive, got {self.lr}; freeze an agent with trainable=false instead"
            )
        if self.schedule not in ("constant", "cosine", "linear"):
            raise ValueError(f"schedule must be constant, cosine or linear, got {self.schedule!r}")
        if not 0 <= self.warmup_ratio < 1:
            raise ValueError(f"warmup_ratio must be in [0, 1), got {self.warmup_ratio}")

    def factor(self, step: int, total: int) -> float:
        """Return the multiplier of ``lr`` for optimizer step ``step`` (from 0) of ``total``.

        >>> OptimizerSettings(schedule="linear").factor(5, 10)
        0.5
        """
        warmup = round(self.warmup_ratio * total)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if self.schedule == "constant":
            return 1.0
        progress = min((step - warmup) / max(total - warmup, 1), 1.0)
        return 0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1.0 - progress


def build_optimizer(parameters: Iterable[nn.Parameter], settings: OptimizerSettings) -> torch.optim.AdamW:
    """Build AdamW over ``parameters`` that require gradients.

    Large models get PyTorch's fused step, which reads and writes every number once; it is the same step up to rounding.

    Raises:
        ValueError: No parameter requires a gradient.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        raise ValueError("no parameter requires a gradient; a frozen policy needs no optimizer")
    fused = sum(parameter.numel() for parameter in trainable) >= _MIN_FUSED
    return torch.optim.AdamW(
        trainable,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=fused or None,
    )


def named_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """Return the state of an optimizer built by :func:`build_optimizer` by parameter name, so that no order can mix it up."""
    state = optimizer.state_dict()["state"]
    return {name: state[index] for index, name in enumerate(_trainable(module)) if index in state}


def load_named_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, named: Mapping[str, dict[str, Any]]
) -> None:
    """Restore what :func:`named_state` returned.

    Raises:
        ValueError: The state is for other parameters.
    """
    names = _trainable(module)
    if named and set(named) != set(names):
        raise ValueError(
            f"optimizer state is for other parameters, for example {sorted(set(named) ^ set(names))[:3]}"
        )
    current = optimizer.state_dict()
    current["state"] = {index: named[name] for index, name in enumerate(names) if name in named}
    optimizer.load_state_dict(current)


def _trainable(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]
