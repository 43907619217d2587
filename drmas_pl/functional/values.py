"""What a critic is trained on and measured by: the clipped value loss and the variance of returns that its values explain.

Legend: N rows, T tokens, v value, R return, ε clip range.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drmas_pl.functional.scopes import nearly_equal


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """Result of :func:`clipped_value_loss`.

    Attributes:
        loss: Scalar sum over unmasked tokens divided by the denominator.
        clipped: Scalar number of tokens whose gradient the clip took away.
    """

    loss: Tensor
    clipped: Tensor


def clipped_value_loss(
    value: Tensor,
    old_value: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    denominator: Tensor | float,
    clip: float | None = 0.2,
) -> ValueLoss:
    """Compute ``½·max((v − R)², (clip(v, v_old − ε, v_old + ε) − R)²)`` over unmasked tokens.

    Args:
        value: (N, T) values with gradient.
        old_value: (N, T) values before the update.
        returns: (N, T) targets.
        mask: (N, T) bool, True on tokens that count; masked ones may hold anything.
        denominator: Unmasked tokens of the whole minibatch, so that losses of its parts add up.
        clip: ε > 0, or ``None`` for the plain squared error.

    Returns:
        Loss and number of clipped tokens, in float32 or better.

    Raises:
        ValueError: Shapes differ, or ε is not positive.

    References:
        Schulman et al., 2017, arXiv:1707.06347 (PPO; the clip is that of its published implementation).

    Example:
        >>> ones = torch.ones(1, 2)
        >>> clipped_value_loss(torch.tensor([[0.5, 1.9]]), ones, 2 * ones, ones.bool(), denominator=2)
        ValueLoss(loss=tensor(0.7225), clipped=tensor(1))
    """
    if not value.shape == old_value.shape == returns.shape == mask.shape:
        shapes = [tuple(tensor.shape) for tensor in (value, old_value, returns, mask)]
        raise ValueError(
            f"value, old_value, returns and mask must share one shape (N, T), got {shapes}; pad rows to one length"
        )
    zero = torch.zeros((), device=value.device)
    value, old_value, returns = (torch.where(mask, tensor, zero) for tensor in (value, old_value, returns))
    error = (value - returns).square()
    clipped = torch.zeros_like(mask, dtype=torch.bool)
    if clip is not None:
        if not clip > 0:
            raise ValueError(f"clip must be positive, got {clip}; use None for the plain squared error")
        near = old_value + (value - old_value).clamp(-clip, clip)
        bound = (near - returns).square()
        clipped = mask & (bound > error)
        error = torch.maximum(error, bound)
    return ValueLoss(loss=0.5 * error.sum() / denominator, clipped=clipped.sum())


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """Compute ``1 − Var(R − v) / Var(R)``: 1 for a perfect critic, 0 for one that knows the mean alone, negative for a misleading one.

    Args:
        value: (M,) values.
        returns: (M,) returns.

    Returns:
        Scalar float64; NaN where all returns are equal, so that there is nothing to explain.

    Raises:
        ValueError: Shapes differ.

    Example:
        >>> float(explained_variance(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 2.0])))
        0.6666...
    """
    if value.shape != returns.shape:
        raise ValueError(
            f"value must have shape {tuple(returns.shape)} like returns, got {tuple(value.shape)}; pass one value per return"
        )
    value = value.to(torch.float64)
    returns = returns.to(torch.float64)
    if not returns.numel() or bool(nearly_equal(returns.min(), returns.max())):
        return returns.new_full((), float("nan"))
    return 1 - (returns - value).var(correction=0) / returns.var(correction=0)
