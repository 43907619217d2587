"""Correction for the mismatch between the engine that sampled and the trainer that scores, under the same weights.

Engine kernels and training kernels give slightly different log-probs, so data that looks on-policy is not. The weights here
multiply the surrogate; the statistics should be logged whether or not a correction is on.

Legend: N rows, T tokens, d = trainer log-prob − engine log-prob, w importance weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_choice
from drmas_pl.functional.ratios import safe_ratio

CorrectionMode = Literal["token", "token_mask", "sequence", "sequence_mask"]


def importance_weights(
    logp: Tensor, engine_logp: Tensor, mask: Tensor, *, mode: CorrectionMode = "token", cap: float = 2.0
) -> Tensor:
    """Compute importance weights from the engine's to the trainer's distribution.

    ``token`` truncates each token's ``exp(d)`` at the cap; ``sequence`` truncates the row's ``exp(Σ d)`` and hands it to all
    its tokens; the ``_mask`` variants set weights above the cap to 0 instead.

    Args:
        logp: (N, T) trainer's log-probs of the sampled tokens, under the weights that sampled them.
        engine_logp: (N, T) engine's log-probs.
        mask: (N, T) bool, True on trained tokens.
        mode: Level, and what happens above the cap.
        cap: Largest weight, at least 1.

    Returns:
        (N, T) weights without gradient; 0 where masked.

    Raises:
        ValueError: The mode is unknown, the cap is below 1, or shapes differ.

    References:
        Yao et al., 2025, "Your efficient RL framework secretly brings you off-policy RL training" (truncated importance
        sampling); Ionides, 2008, truncated importance sampling.

    Example:
        >>> trainer, engine = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[-1.2, -1.0, -3.5]])
        >>> importance_weights(trainer, engine, torch.ones(1, 3, dtype=torch.bool))
        tensor([[1.2214, 0.3679, 2.0000]])
    """
    check_choice("mode", mode, get_args(CorrectionMode))
    if not cap >= 1:
        raise ValueError(f"cap must be at least 1, got {cap}; a smaller cap would shrink on-policy data")
    delta = _masked_delta(logp, engine_logp, mask)
    if mode.startswith("sequence"):
        delta = delta.sum(-1, keepdim=True).expand_as(delta)
    weight = safe_ratio(delta)
    weight = torch.where(weight <= cap, weight, 0.0) if mode.endswith("_mask") else weight.clamp_max(cap)
    return torch.where(mask, weight, 0.0)


@dataclass(frozen=True, slots=True)
class MismatchSums:
    """Sums from which a trainer reduces the mismatch over micro-batches and ranks; scalars without gradient.

    Attributes:
        tokens: Trained tokens, weighted.
        absolute: Σ|d| over them.
        largest: max|d|; reduce with a maximum.
        weight: Σ exp(d), before any cap.
        weight_square: Σ exp(d)²; ``weight²/(weight_square·tokens)`` is the effective share of the samples.
    """

    tokens: Tensor
    absolute: Tensor
    largest: Tensor
    weight: Tensor
    weight_square: Tensor


def mismatch_sums(
    logp: Tensor, engine_logp: Tensor, mask: Tensor, *, weight: Tensor | None = None
) -> MismatchSums:
    """Measure how far the engine's log-probs are from the trainer's.

    Args:
        logp: (N, T) trainer's log-probs.
        engine_logp: (N, T) engine's log-probs.
        mask: (N, T) bool, True on trained tokens.
        weight: (N,) original rows per row; ``None`` means 1.

    Returns:
        Sums over the trained tokens.

    Raises:
        ValueError: Shapes differ.

    Example:
        >>> sums = mismatch_sums(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]]), torch.tensor([[True, True]]))
        >>> sums.absolute, sums.largest
        (tensor(0.5000), tensor(0.5000))
    """
    delta = _masked_delta(logp, engine_logp, mask)
    count = mask.to(delta.dtype) if weight is None else mask * weight.to(delta.dtype).unsqueeze(-1)
    ratio = safe_ratio(delta)
    size = delta.abs()
    return MismatchSums(
        tokens=count.sum(),
        absolute=(count * size).sum(),
        largest=size.amax() if size.numel() else delta.new_zeros(()),
        weight=(count * ratio).sum(),
        weight_square=(count * ratio.square()).sum(),
    )


def _masked_delta(logp: Tensor, engine_logp: Tensor, mask: Tensor) -> Tensor:
    """d on trained tokens, 0 elsewhere, without gradient."""
    if not logp.shape == engine_logp.shape == mask.shape:
        shapes = f"{tuple(logp.shape)}, {tuple(engine_logp.shape)}, {tuple(mask.shape)}"
        raise ValueError(
            f"logp, engine_logp and mask must share one shape (N, T), got {shapes}; cut all to the response"
        )
    return torch.where(mask, logp.detach() - engine_logp.detach(), 0.0)
