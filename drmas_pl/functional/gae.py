"""Generalised advantage estimation over the tokens of a row, for agents with a critic.

Legend: N rows, T tokens, γ discount, λ trace decay, δ temporal-difference error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drmas_pl.functional.baselines import whiten
from drmas_pl.functional.checks import check_range


@dataclass(frozen=True, slots=True)
class GeneralizedAdvantage:
    """Result of :func:`generalized_advantage`; all tensors are (N, T) float32 and 0 where masked.

    Attributes:
        advantage: λ-weighted sum of temporal-difference errors.
        whitened: The same, with mean 0 and variance 1 over all unmasked tokens; what the policy trains on.
        returns: Advantage plus value; what the critic regresses on.
    """

    advantage: Tensor
    whitened: Tensor
    returns: Tensor


def generalized_advantage(
    reward: Tensor, value: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> GeneralizedAdvantage:
    """Accumulate temporal-difference errors backwards over each row's unmasked tokens.

    Masked tokens are stepped over: the next value of a token is that of the next unmasked one, and 0 after the last.

    Args:
        reward: (N, T) reward per token.
        value: (N, T) critic's value per token.
        mask: (N, T) bool, True on trained tokens; gaps are allowed.
        gamma: γ in [0, 1].
        lam: λ in [0, 1].

    Returns:
        Advantages, whitened advantages and returns.

    Raises:
        ValueError: Shapes differ, or γ or λ is outside [0, 1].

    References:
        Schulman et al., 2016, eq. 16, arXiv:1506.02438.

    Example:
        >>> reward, value = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
        >>> generalized_advantage(reward, value, torch.ones(1, 2, dtype=torch.bool)).returns
        tensor([[1., 1.]])
    """
    if reward.dim() != 2 or not reward.shape == value.shape == mask.shape:
        shapes = f"{tuple(reward.shape)}, {tuple(value.shape)}, {tuple(mask.shape)}"
        raise ValueError(
            f"reward, value and mask must share one shape (N, T), got {shapes}; pad rows to one length"
        )
    check_range("gamma", gamma, low=0.0, high=1.0)
    check_range("lam", lam, low=0.0, high=1.0)
    mask = mask.to(torch.bool)
    reward = reward.to(torch.float64)
    value = value.to(torch.float64)
    trace = value.new_zeros(value.shape[0])
    next_value = torch.zeros_like(trace)
    columns = []
    for token in range(value.shape[1] - 1, -1, -1):
        active = mask[:, token]
        delta = reward[:, token] + gamma * next_value - value[:, token]
        trace = torch.where(active, delta + gamma * lam * trace, trace)
        next_value = torch.where(active, value[:, token], next_value)
        columns.append(trace)
    advantage = torch.stack(columns[::-1], dim=1)
    return GeneralizedAdvantage(
        advantage=torch.where(mask, advantage, 0.0).to(torch.float32),
        whitened=whiten(advantage, mask),
        returns=torch.where(mask, advantage + value, 0.0).to(torch.float32),
    )
