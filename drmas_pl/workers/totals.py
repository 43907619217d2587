"""What an iteration's minibatches add up to: sums are summed, maxima compared, and means taken over all tokens once, at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from drmas_pl.functional.metrics import mean_metrics, merge_metrics

_MISMATCH = ("mismatch", "mismatch_max")
_DRIFT = ("drift", "drift_max")


class Means:
    """Averages of numbers that are one per minibatch."""

    def __init__(self) -> None:
        self.total: defaultdict[str, float] = defaultdict(float)
        self.weight: defaultdict[str, float] = defaultdict(float)

    def add(self, values: Mapping[str, float], *, weight: float = 1.0) -> None:
        """Count in one minibatch; ``weight`` is its number of tokens for means over tokens."""
        for name, value in values.items():
            self.total[name] += value * weight
            self.weight[name] += weight

    def result(self) -> dict[str, float]:
        """Return the averages by name."""
        return {name: total / self.weight[name] for name, total in self.total.items()}


@dataclass(frozen=True, slots=True)
class PartStep:
    """One part of a minibatch, such as an agent's rows, over all micro-batches and ranks.

    Attributes:
        loss: Its share of the minibatch's loss.
        grad_norm: Norm of its own gradient.
        sums: Metrics as its loss returned them; an agent's have ``drift`` (|log-prob of the policy − engine's|) and ``drift_max``.
    """

    loss: float
    grad_norm: float
    sums: dict[str, Tensor]

    @property
    def drift(self) -> float:
        """Mean |log-prob of the policy − engine's| per token of an agent."""
        return float(self.sums["drift"]) / max(float(self.sums["tokens"]), 1.0)


@dataclass(slots=True)
class AgentTotals:
    """One agent's parts in an iteration's minibatches.

    Attributes:
        sums: Merged metrics of all minibatches.
        before: Tokens and drift of those before the first optimizer step.
        steps: Numbers that are one per minibatch.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)
    steps: Means = field(default_factory=Means)

    def add(self, step: PartStep, *, stepped: bool) -> None:
        """Count in a minibatch; ``stepped`` tells whether the optimizer has made a step in this iteration before."""
        self.sums = merge_metrics([self.sums, step.sums])
        if not stepped:
            drift = {name: step.sums[name] for name in ("tokens", *_DRIFT)}
            self.before = merge_metrics([self.before, drift])
        self.steps.add({"loss": step.loss, "grad_norm": step.grad_norm})

    def result(self, *, stale: bool, recomputed: bool) -> dict[str, float]:
        """Return the iteration's metrics.

        Args:
            stale: Whether older weights sampled any of the rows.
            recomputed: Whether old log-probs are the trainer's own.

        Returns:
            Metrics by name. What the policy and the engine differ in before the first step is the ``mismatch`` of equal weights, or the
            ``policy_shift`` since older ones; later it is learning, and left out. The trainer's own old log-probs give a mismatch for
            all minibatches.
        """
        values = {**mean_metrics(self.sums), **self.steps.result()}
        hidden = (*_DRIFT, *(_MISMATCH if stale or not recomputed else ()))
        values = {name: value for name, value in values.items() if name not in hidden}
        if not self.before:
            return values
        drift = mean_metrics(self.before)
        names = ("policy_shift", "policy_shift_max") if stale else _MISMATCH
        found = {name: drift[source] for name, source in zip(names, _DRIFT)}
        return {**found, **values}
