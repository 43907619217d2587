"""Intervals: of a share over tasks, and of a mean over seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

# 0.975 quantiles of Student's t for 1 to 10 degrees of freedom; beyond, the Cornish-Fisher expansion is exact to three digits
_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL: Final = 1.959964


def share_interval(share: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a share after Wilson.

    Args:
        share: Observed share, in [0, 1].
        count: Independent tasks behind it, at least 1.

    >>> low, high = share_interval(0.5, 100)
    >>> round(low, 4), round(high, 4)
    (0.4038, 0.5962)
    """
    square = _NORMAL**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    spread = math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    half = _NORMAL / (1 + square / count) * spread
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of independent values and its 95 % interval by Student's t; without spread for a single one.

    >>> [round(number, 3) for number in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    middle = sum(values) / len(values)
    degrees = len(values) - 1
    if not degrees:
        return middle, middle, middle
    deviation = math.sqrt(sum((value - middle) ** 2 for value in values) / degrees)
    half = _student(degrees) * deviation / math.sqrt(len(values))
    return middle, middle - half, middle + half


def _student(degrees: int) -> float:
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    first = (_NORMAL**3 + _NORMAL) / 4
    second = (5 * _NORMAL**5 + 16 * _NORMAL**3 + 3 * _NORMAL) / 96
    return _NORMAL + first / degrees + second / degrees**2


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest quarter, rounded down, of the values.

    >>> interquartile_mean([0.0, 1.0, 2.0, 100.0])
    1.5
    """
    cut = len(values) // 4
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def aggregate_interval(
    scores: Sequence[Sequence[float]], *, repetitions: int = 2000
) -> tuple[float, float, float]:
    """Return the interquartile mean over tasks and seeds, with its 95 % interval by a stratified bootstrap.

    Args:
        scores: For each task, or data source, the scores of all seeds.
        repetitions: Samples of the bootstrap, whose seeds are fixed.

    References:
        Agarwal et al., 2021, arXiv:2108.13264.

    >>> aggregate_interval([[0.5, 0.5, 0.5], [0.7, 0.7, 0.7]])
    (0.6, 0.6, 0.6)
    """
    middle = interquartile_mean([score for own in scores for score in own])
    generator = random.Random(0)
    means = sorted(
        interquartile_mean([score for own in scores for score in generator.choices(own, k=len(own))])
        for _ in range(repetitions)
    )
    return middle, means[int(0.025 * repetitions)], means[int(0.975 * repetitions) - 1]
