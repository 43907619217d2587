"""Estimators of the KL divergence to a reference policy, per token, finite in value and gradient for any log-probs.

Legend: N rows, T tokens, d = log π − log π_ref.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_choice
from drmas_pl.functional.ratios import MAX_LOG_RATIO

KlEstimator = Literal["k1", "abs", "k2", "k3"]

# A single token beyond this says that something broke; unbounded, it would own the whole batch's gradient.
_MAX_K3 = 10.0


def kl_estimate(logp: Tensor, ref_logp: Tensor, *, estimator: KlEstimator = "k3") -> Tensor:
    """Estimate KL(π ‖ π_ref) from tokens sampled by π.

    ``k1`` is d: unbiased, may be negative, and its gradient has mean 0, so use it in the reward rather than in the loss.
    ``abs`` is ``|d|``. ``k2`` is ½d²: biased, with the gradient of the true KL. ``k3`` is exp(−d) + d − 1: unbiased and never
    negative; d is clamped to ±20 and the estimate to 10.

    Args:
        logp: (N, T) log π.
        ref_logp: (N, T) log π_ref.
        estimator: Which estimator.

    Returns:
        (N, T) estimates in nats.

    Raises:
        ValueError: The estimator is unknown, or shapes differ.

    References:
        Schulman, 2020, "Approximating KL divergence"; Shao et al., 2024, eq. 4, arXiv:2402.03300.

    Example:
        >>> logp, ref = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
        >>> kl_estimate(logp, ref, estimator="k3")
        tensor([[0.1065, 0.7183]])
    """
    check_choice("estimator", estimator, get_args(KlEstimator))
    if logp.shape != ref_logp.shape:
        raise ValueError(
            f"ref_logp must have shape {tuple(logp.shape)} like logp, got {tuple(ref_logp.shape)}; score the same tokens"
        )
    return _ESTIMATORS[estimator](logp - ref_logp)


def _k3(delta: Tensor) -> Tensor:
    """exp(−d) + d − 1, clamped."""
    delta = delta.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    # expm1 keeps the digits that exp(−d) − 1 loses near d = 0.
    return (torch.expm1(-delta) + delta).clamp(-_MAX_K3, _MAX_K3)


_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda delta: delta,
    "abs": torch.abs,
    "k2": lambda delta: 0.5 * delta.square(),
    "k3": _k3,
}
