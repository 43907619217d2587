"""Statistics of repeated runs: bootstrap intervals over seeds, spikes, agreement on a log scale. Pure Python, no state."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
SPIKE = 10.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2, *, scale: float = 1.0) -> str:
        """Write the number and its interval; a dash where there is none.

        >>> Interval(0.5, 0.25, 0.75).text(0, scale=100), Interval(math.nan, math.nan, math.nan).text()
        ('50 [25, 75]', '–')
        """
        if math.isnan(self.value):
            return "–"
        value, low, high = (f"{scale * number:.{digits}f}" for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


def bootstrap(
    samples: Sequence[T], statistic: Callable[[Sequence[T]], float], *, draws: int = 1000, seed: int = 0
) -> Interval:
    """Compute a statistic and its 95 % percentile interval over resampled ``samples``.

    With five samples such an interval is on the narrow side; equal samples give an interval without width.

    Args:
        samples: Independent units, such as one record per seed; at least one.
        statistic: Maps a list of units to a number; draws for which it is NaN are left out.
        draws: Number of resamples.
        seed: Decides the resamples.

    Raises:
        ValueError: There are no samples.

    References:
        Efron and Tibshirani, 1993, section 13.3.

    >>> bootstrap([1.0, 1.0, 1.0], statistics.fmean)
    Interval(value=1.0, low=1.0, high=1.0)
    """
    if not samples:
        raise ValueError("bootstrap needs at least one sample, got none")
    rng = random.Random(seed)
    drawn = (statistic(rng.choices(samples, k=len(samples))) for _ in range(draws))
    values = [value for value in drawn if not math.isnan(value)]
    if not values:
        return Interval(statistic(samples), math.nan, math.nan)
    return Interval(statistic(samples), percentile(values, 0.025), percentile(values, 0.975))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie, interpolated; NaN for none.

    >>> percentile([3.0, 1.0, 2.0], 0.5), percentile([0.0, 10.0], 0.75)
    (2.0, 7.5)
    """
    if not values:
        return math.nan
    ordered, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spike_share(norms: Sequence[float], *, factor: float = SPIKE) -> float:
    """Return the share of gradient norms above ``factor`` times their median; NaN for none.

    >>> spike_share([1.0, 1.0, 1.0, 11.0])
    0.25
    """
    if not norms:
        return math.nan
    limit = factor * statistics.median(norms)
    return sum(norm > limit for norm in norms) / len(norms)


def log_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Pearson's correlation of the logarithms of positive pairs; NaN where it is undefined.

    >>> round(log_correlation([(1.0, 2.0), (10.0, 20.0), (100.0, 200.0)]), 6)
    1.0
    """
    logs = [(math.log(first), math.log(second)) for first, second in pairs if first > 0 and second > 0]
    if len(logs) < 2:
        return math.nan
    try:
        return statistics.correlation(*zip(*logs, strict=True))
    except statistics.StatisticsError:
        return math.nan


def typical_factor(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median factor between two positive numbers, always at least 1; NaN for none.

    >>> typical_factor([(1.0, 2.0), (4.0, 2.0), (1.0, 1.0)])
    2.0
    """
    factors = [max(first / second, second / first) for first, second in pairs if first > 0 and second > 0]
    return statistics.median(factors) if factors else math.nan
