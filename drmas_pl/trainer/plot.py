"""The learning curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_run(records: Sequence[dict[str, Any]], path: Path, *, agents: Sequence[str], title: str) -> None:
    """Draw success, calls per agent, gradient norm per agent and amplification over the iterations.

    Args:
        records: One mapping of metrics per iteration, each with ``iteration``; validation metrics where there are any.
        path: PNG to write.
        agents: Agents in the order of their colours.
        title: Heading.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), constrained_layout=True)
    figure.suptitle(title)
    success, calls, norms, factors = axes.flat
    for name, label, style in (
        ("train/success", "train, sampled", {"alpha": 0.35}),
        ("validation/success", "validation, sampled", {"marker": "o"}),
        ("validation-greedy/success", "validation, greedy", {"marker": "s"}),
    ):
        _line(success, records, name, label, **style)
    for index, agent in enumerate(agents):
        color = f"C{index}"
        _line(calls, records, f"train/{agent}/calls", agent, color=color)
        _line(norms, records, f"train/{agent}/grad_norm", agent, color=color)
        _line(factors, records, f"train/{agent}/amplification", agent, color=color)
        _line(
            factors,
            records,
            f"train/{agent}/amplification_global",
            f"{agent}, global baseline",
            color=color,
            linestyle=":",
        )
    success.set(ylabel="success", ylim=(0, 1))
    calls.set(ylabel="calls per trajectory")
    norms.set(ylabel="gradient norm before clipping", xlabel="iteration")
    factors.set(ylabel="amplification λ", xlabel="iteration")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _line(axis: Any, records: Sequence[dict[str, Any]], name: str, label: str, **style: Any) -> None:
    points = [(record["iteration"], record[name]) for record in records if name in record]
    if points:
        axis.plot(*zip(*points, strict=True), label=label, **style)
