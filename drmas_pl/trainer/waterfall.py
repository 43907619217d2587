"""A rollout as a picture: a line for each trajectory, coloured by what it waited for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from drmas_pl.report.figures import styled
from drmas_pl.report.palette import colour_of
from drmas_pl.rollout.timeline import Timeline

_ENVIRONMENT: Final = "0.6"


def plot_waterfall(timeline: Timeline, path: Path, *, agents: Sequence[str], title: str) -> None:
    """Draw when every trajectory waited for which agent's completion, and when for the environment.

    Args:
        timeline: Of one rollout.
        path: PNG to write.
        agents: Agents in the order of their colours.
        title: Heading.
    """
    begun = min((span.start for span in timeline.spans), default=0.0)
    height = min(max(0.05 * timeline.trajectories, 3.0), 12.0)
    width = max(height * 50 / max(timeline.trajectories, 1), 0.4)
    with styled() as plt:
        figure, axis = plt.subplots(figsize=(10, height), constrained_layout=True)
        for index, agent in enumerate((*agents, None)):
            spans = [span for span in timeline.spans if span.agent == agent]
            axis.hlines(
                [span.trajectory for span in spans],
                [span.start - begun for span in spans],
                [span.end - begun for span in spans],
                colors=_ENVIRONMENT if agent is None else colour_of(index),
                linewidth=width,
                label=agent or "environment",
            )
        axis.set(title=title, xlabel="seconds", ylabel="trajectory", xlim=(0, None))
        axis.invert_yaxis()
        axis.grid(False)
        for line in figure.legend(loc="outside upper right", ncols=len(agents) + 1).get_lines():
            line.set_linewidth(3)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        plt.close(figure)
