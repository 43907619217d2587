"""Sums that a trainer reduces over micro-batches and ranks before it divides once, so that metrics do not depend on the split.

Legend: N rows, T tokens, w original rows per (merged) row. A metrics dict maps names to scalar tensors: the counts ``tokens``
and ``rows``, maxima whose names end in ``_max``, and otherwise sums over trained tokens weighted with w.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from drmas_pl.functional.correction import mismatch_sums
from drmas_pl.functional.ratios import safe_ratio
from drmas_pl.functional.surrogates import ClipEvents, per_token

MAX_SUFFIX = "_max"
_COUNTS = ("tokens", "rows")


def policy_metrics(
    log_ratio: Tensor, advantage: Tensor, count: Tensor, *, events: ClipEvents | None = None
) -> dict[str, Tensor]:
    """Sum what describes a policy update: ratios, advantages, clipping.

    Args:
        log_ratio: (N, T) log ratios.
        advantage: (N,) or (N, T), summed over the original rows of a merged row.
        count: (N, T) w on trained tokens, 0 elsewhere.
        events: Tokens that the surrogate cut, if it cuts any.

    Returns:
        ``tokens``, ``rows``, ``approx_kl`` (−log ratio), ``ratio`` with ``ratio_square``, from which :func:`mean_metrics` derives the
        effective share of the samples, ``ratio_max``, ``advantage``, ``advantage_abs`` and, with events, ``clipped`` and
        ``dual_clipped``.

    Example:
        >>> policy_metrics(torch.zeros(1, 2), torch.tensor([0.5]), torch.tensor([[2.0, 0.0]]))["tokens"]
        tensor(2.)
    """
    ratio = safe_ratio(log_ratio)
    trained = count > 0
    signal = torch.where(trained, per_token(advantage, log_ratio), 0.0)
    metrics = {
        "tokens": count.sum(),
        "rows": count.amax(-1).sum() if count.numel() else count.sum(),
        "approx_kl": -(count * log_ratio).sum(),
        "ratio": (count * ratio).sum(),
        "ratio_square": (count * ratio.square()).sum(),
        "ratio_max": torch.where(trained, ratio, 0.0).amax() if count.numel() else count.sum(),
        "advantage": signal.sum(),
        "advantage_abs": signal.abs().sum(),
    }
    if events is not None:
        metrics |= {
            "clipped": (count * events.clipped).sum(),
            "dual_clipped": (count * events.dual_clipped).sum(),
        }
    return metrics


def mismatch_metrics(
    logp: Tensor, engine_logp: Tensor, mask: Tensor, *, weight: Tensor | None = None
) -> dict[str, Tensor]:
    """Sum what describes the mismatch between trainer and engine.

    Args:
        logp: (N, T) trainer's log-probs under the weights that sampled.
        engine_logp: (N, T) engine's log-probs.
        mask: (N, T) bool, True on trained tokens.
        weight: (N,) w; ``None`` means 1.

    Returns:
        ``mismatch`` (|Δ log-prob|), ``mismatch_max``, and ``engine_ratio`` with ``engine_ratio_square``, from which
        :func:`mean_metrics` derives the effective share of the samples.

    Example:
        >>> mismatch_metrics(torch.tensor([[-1.0]]), torch.tensor([[-1.5]]), torch.tensor([[True]]))["mismatch_max"]
        tensor(0.5000)
    """
    sums = mismatch_sums(logp, engine_logp, mask, weight=weight)
    return {
        "mismatch": sums.absolute,
        "mismatch_max": sums.largest,
        "engine_ratio": sums.weight,
        "engine_ratio_square": sums.weight_square,
    }


def merge_metrics(parts: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Combine the metrics of micro-batches or ranks: maxima by maximum, everything else by sum.

    Args:
        parts: Metrics dicts; a name that is absent from a part counts as 0 there.

    Returns:
        One metrics dict.

    Example:
        >>> merge_metrics([{"tokens": torch.tensor(2.0)}, {"tokens": torch.tensor(3.0)}])
        {'tokens': tensor(5.)}
    """
    merged: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            if name not in merged:
                merged[name] = value
            elif name.endswith(MAX_SUFFIX):
                merged[name] = torch.maximum(merged[name], value)
            else:
                merged[name] = merged[name] + value
    return merged


def mean_metrics(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Divide the sums of a complete minibatch by its trained tokens.

    Args:
        metrics: Merged metrics of all micro-batches and ranks.

    Returns:
        Counts and maxima as they are, means per trained token (0 without any), and in place of squared ratios the share of the
        samples that they are worth, towards 0 as few tokens dominate: ``effective_share`` for the policy that moves away from the one
        that sampled, ``engine_effective_share`` for the trainer against the engine, 1 if they agree.

    Example:
        >>> mean_metrics({"tokens": torch.tensor(4.0), "clipped": torch.tensor(1.0), "ratio_max": torch.tensor(1.5)})
        {'tokens': 4.0, 'clipped': 0.25, 'ratio_max': 1.5}
    """
    plain = {name: float(value) for name, value in metrics.items()}
    tokens = max(plain.get("tokens", 0.0), 1.0)
    squares = {
        name: plain.pop(f"{name}_square") for name in ("ratio", "engine_ratio") if f"{name}_square" in plain
    }
    means = {
        name: value if name in _COUNTS or name.endswith(MAX_SUFFIX) else value / tokens
        for name, value in plain.items()
    }
    for name, square in squares.items():
        means[name.replace("ratio", "effective_share")] = (
            plain.get(name, 0.0) ** 2 / (square * tokens) if square > 0 else 0.0
        )
    return means
