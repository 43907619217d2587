"""The learning curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from drmas_pl.report.figures import Curve, draw_curves, styled

# metric, name, whether it is drawn behind the others
SUCCESS: Final = (
    ("validation/success", "sampled", False),
    ("validation-greedy/success", "greedy", False),
    ("train/success", "training", True),
)
BY_AGENT: Final = (
    ("calls", "calls per trajectory"),
    ("grad_norm", "gradient norm before clipping"),
    ("amplification_global", "λ that a global baseline would cause"),
)


def plot_run(records: Sequence[dict[str, Any]], path: Path, *, agents: Sequence[str], title: str) -> None:
    """Draw success, calls per agent, gradient norm per agent and amplification over the iterations.

    Args:
        records: One mapping of metrics per iteration, each with ``iteration``; validation metrics where there are any.
        path: PNG to write.
        agents: Agents in the order of their colours.
        title: Heading.
    """
    with styled() as plt:
        figure, axes = plt.subplots(2, 2, figsize=(11, 6.5), constrained_layout=True)
        figure.suptitle(title)
        success, *others = axes.flat
        success.set(title="success", ylim=(0, 1))
        draw_curves(
            success,
            [
                Curve(name, place, _points(records, metric), faint=faint)
                for place, (metric, name, faint) in enumerate(SUCCESS)
            ],
        )
        for axis, (metric, name) in zip(others, BY_AGENT, strict=True):
            curves = [
                Curve(agent, place, _points(records, f"train/{agent}/{metric}"))
                for place, agent in enumerate(agents)
            ]
            draw_curves(axis, curves)
            axis.set(title=name)
        for axis in axes[-1]:
            axis.set_xlabel("iteration")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        plt.close(figure)


def _points(records: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(record["iteration"], record[name]) for record in records if name in record]
