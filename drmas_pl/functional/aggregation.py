"""From losses per token to one number, with explicit global denominators.

A minibatch loss is ``Σ rows / denominator``, where the denominator counts *all* micro-batches and ranks. The losses of
micro-batches then simply add up, whatever the split; a mean of means would weigh tokens by the micro-batch they fell into.

Legend: N rows, T tokens, w weight: number of original rows that a merged row stands for.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_choice, check_rows

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length"]


def row_losses(loss: Tensor, mask: Tensor, *, mode: Aggregation) -> Tensor:
    """Reduce each row's trained tokens: to their mean for ``seq-mean-token-mean``, to their sum for all other modes.

    Args:
        loss: (N, T) losses per token; values where masked are ignored, non-finite ones included.
        mask: (N, T) bool, True on trained tokens.
        mode: Aggregation mode.

    Returns:
        (N,) numerators; 0 for rows without a trained token.

    Raises:
        ValueError: The mode is unknown, or shapes differ.

    Example:
        >>> loss, mask = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[True, True, False]])
        >>> row_losses(loss, mask, mode="seq-mean-token-mean"), row_losses(loss, mask, mode="token-mean")
        (tensor([1.5000]), tensor([3.]))
    """
    check_choice("mode", mode, get_args(Aggregation))
    if loss.shape != mask.shape:
        raise ValueError(
            f"mask must have shape {tuple(loss.shape)} like loss, got {tuple(mask.shape)}; cut both to the response"
        )
    total = torch.where(mask, loss, 0.0).sum(-1)
    return total / mask.sum(-1).clamp_min(1) if mode == "seq-mean-token-mean" else total


def aggregate(
    loss: Tensor,
    mask: Tensor,
    *,
    mode: Aggregation,
    denominator: Tensor | float,
    weight: Tensor | None = None,
) -> Tensor:
    """Sum the row losses of one micro-batch over the minibatch's denominator.

    Args:
        loss: (N, T) losses per token.
        mask: (N, T) bool, True on trained tokens.
        mode: Aggregation mode.
        denominator: Of the whole minibatch, see :func:`loss_denominator`; 0 only if nothing is trained at all.
        weight: (N,) factor per row, for terms whose loss does not already carry it; ``None`` means 1.

    Returns:
        Scalar; 0 for a fully masked batch.

    Raises:
        ValueError: The mode is unknown, or shapes differ.

    Example:
        >>> loss, mask = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)
        >>> aggregate(loss, mask, mode="token-mean", denominator=5)
        tensor(3.6000)
    """
    rows = row_losses(loss, mask, mode=mode)
    if weight is not None:
        check_rows(rows=rows, weight=weight)
        rows = rows * weight
    divisor = torch.as_tensor(denominator, dtype=rows.dtype, device=rows.device)
    return rows.sum() / torch.where(divisor > 0, divisor, 1.0)


def loss_denominator(
    lengths: Tensor, *, mode: Aggregation, weight: Tensor | None = None, fixed_length: int | None = None
) -> Tensor:
    """Count what the minibatch's loss is divided by.

    Trained tokens for ``token-mean``; rows with a trained token for the two ``seq-mean`` modes; these rows times ``fixed_length`` for
    ``fixed-length``. Counts of parts of a minibatch add up to that of the whole.

    Args:
        lengths: (N,) trained tokens per row, over the whole minibatch; rows that are not computed count, too.
        mode: Aggregation mode.
        weight: (N,) original rows per row; ``None`` means 1.
        fixed_length: What each row's sum is divided by with ``fixed-length``, usually the largest response length.

    Returns:
        Scalar float32.

    Raises:
        ValueError: The mode is unknown, shapes differ, or ``fixed-length`` lacks its length.

    References:
        Liu et al., 2025 (Dr.GRPO: a constant in place of each response's length), arXiv:2503.20783.

    Example:
        >>> loss_denominator(torch.tensor([2, 3]), mode="token-mean"), loss_denominator(torch.tensor([2, 0]), mode="seq-mean-token-sum")
        (tensor(5.), tensor(1.))
    """
    check_choice("mode", mode, get_args(Aggregation))
    check_rows(lengths=lengths, weight=weight)
    if mode == "fixed-length" and fixed_length is None:
        raise ValueError(
            "mode='fixed-length' expects fixed_length, got None; pass the largest response length"
        )
    count = lengths if mode == "token-mean" else lengths > 0
    count = count.to(torch.float64) if weight is None else count * weight.to(torch.float64)
    each = 1 if mode != "fixed-length" or fixed_length is None else fixed_length
    return (count.sum() * each).to(torch.float32)
