"""Policy-gradient surrogates: loss per token from log ratio and advantage.

Every surrogate is positively homogeneous in the advantage, ``f(r, a·A) = a·f(r, A)`` for a ≥ 0, hence additive over advantages
of one sign. Equal rows may therefore be merged into one row with the summed advantage.

Legend: N rows, T tokens, r ratio, A advantage, c dual-clip bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drmas_pl.functional.ratios import safe_ratio


def clipped_surrogate(
    log_ratio: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> Tensor:
    """Compute the clipped loss ``−min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A)``, capped at ``−c·A`` where A is negative.

    Args:
        log_ratio: (N, T) log ratios with gradient.
        advantage: (N,) or (N, T) advantages.
        clip_low: ε_low, in [0, 1].
        clip_high: ε_high, at least 0.
        dual_clip: c > 1, or ``None`` for no cap.

    Returns:
        (N, T) losses.

    References:
        Schulman et al., 2017, eq. 7, arXiv:1707.06347; Ye et al., 2020, eq. 5, arXiv:1912.09729; Yu et al., 2025 (DAPO:
        separate ranges), arXiv:2503.14476.

    Example:
        >>> clipped_surrogate(torch.tensor([[1.5, 4.0]]).log(), torch.tensor([[1.0, -1.0]]))
        tensor([[-1.2000,  3.0000]])
    """
    advantage = per_token(advantage, log_ratio)
    ratio = safe_ratio(log_ratio)
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)


def cispo_surrogate(
    log_ratio: Tensor, advantage: Tensor, *, logp: Tensor, clip_low: float = 0.2, clip_high: float = 0.2
) -> Tensor:
    """Compute ``−sg(clip(r, 1 − ε_low, 1 + ε_high))·A·log π``: the ratio is clipped, but no token loses its gradient.

    Args:
        log_ratio: (N, T) log ratios; no gradient flows through them.
        advantage: (N,) or (N, T) advantages.
        logp: (N, T) log π with gradient.
        clip_low: ε_low, in [0, 1].
        clip_high: ε_high, at least 0.

    Returns:
        (N, T) losses.

    References:
        MiniMax, 2025 (CISPO), eq. 4, arXiv:2506.13585.

    Example:
        >>> cispo_surrogate(torch.tensor([[1.5]]).log(), torch.tensor([1.0]), logp=torch.tensor([[-2.0]]))
        tensor([[2.4000]])
    """
    weight = safe_ratio(log_ratio.detach()).clamp(1 - clip_low, 1 + clip_high)
    return -weight * per_token(advantage, log_ratio) * logp


def policy_gradient_surrogate(log_ratio: Tensor, advantage: Tensor, *, logp: Tensor) -> Tensor:
    """Compute ``−A·log π``, the plain policy gradient of on-policy data.

    Args:
        log_ratio: (N, T); only its shape is used, since on-policy ratios are 1.
        advantage: (N,) or (N, T) advantages.
        logp: (N, T) log π with gradient.

    Returns:
        (N, T) losses.

    References:
        Williams, 1992, REINFORCE.

    Example:
        >>> policy_gradient_surrogate(torch.zeros(1, 1), torch.tensor([0.5]), logp=torch.tensor([[-2.0]]))
        tensor([[1.]])
    """
    return -per_token(advantage, log_ratio) * logp


@dataclass(frozen=True, slots=True)
class ClipEvents:
    """Which tokens a surrogate cut.

    Attributes:
        clipped: (N, T) bool, the ratio left the clip range in the direction the advantage pushes it.
        dual_clipped: (N, T) bool, the dual bound was active.
    """

    clipped: Tensor
    dual_clipped: Tensor


def clip_events(
    log_ratio: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> ClipEvents:
    """Find the tokens whose gradient :func:`clipped_surrogate` cuts, for metrics.

    Args:
        log_ratio: (N, T) log ratios.
        advantage: (N,) or (N, T) advantages.
        clip_low: ε_low.
        clip_high: ε_high.
        dual_clip: c, or ``None``.

    Returns:
        Masks without gradient; apply the loss mask before counting.

    Example:
        >>> events = clip_events(torch.tensor([[1.5, 1.5, 4.0]]).log(), torch.tensor([[1.0, -1.0, -1.0]]))
        >>> events.clipped.tolist(), events.dual_clipped.tolist()
        ([[True, False, False]], [[False, False, True]])
    """
    advantage = per_token(advantage, log_ratio)
    ratio = safe_ratio(log_ratio.detach())
    clipped = ((advantage > 0) & (ratio > 1 + clip_high)) | ((advantage < 0) & (ratio < 1 - clip_low))
    dual = torch.zeros_like(clipped) if dual_clip is None else (advantage < 0) & (ratio > dual_clip)
    return ClipEvents(clipped, dual)


def per_token(advantage: Tensor, like: Tensor) -> Tensor:
    """Broadcast one advantage per row over the row's tokens.

    Args:
        advantage: (N,) or (N, T).
        like: (N, T) tensor that sets the shape.

    Returns:
        (N, T), a view where possible.

    Raises:
        ValueError: The shape is neither (N,) nor (N, T).

    Example:
        >>> per_token(torch.tensor([1.0, 2.0]), torch.zeros(2, 2))
        tensor([[1., 1.],
                [2., 2.]])
    """
    if advantage.shape == like.shape:
        return advantage
    if advantage.shape != like.shape[:1]:
        wanted = f"{tuple(like.shape[:1])} or {tuple(like.shape)}"
        raise ValueError(
            f"advantage must have shape {wanted}, got {tuple(advantage.shape)}; give one value per row or token"
        )
    return advantage.unsqueeze(-1).expand_as(like)
