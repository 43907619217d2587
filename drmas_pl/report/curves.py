"""The curves of a run: which metrics belong into one picture, and their points."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from drmas_pl.report.run_files import RunFiles

# Points of one curve; more would lie within one pixel.
MAX_POINTS: Final = 300
MAX_SOURCES: Final = 12


@dataclass(frozen=True, slots=True)
class Series:
    """One curve.

    Attributes:
        label: Its name in the legend.
        agent: Position of its agent; None where it belongs to no agent.
        code: Number of its dash and marker, the second code beside the colour.
        points: Iterations and values.
    """

    label: str
    agent: int | None
    code: int
    points: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture.

    Attributes:
        key: Its name, equal in all runs.
        title: Its heading.
        healthy: What its values should do.
        share: Whether values are shares in [0, 1].
        series: Its curves.
    """

    key: str
    title: str
    healthy: str
    share: bool
    series: list[Series]


# key, title, healthy, whether it is a share; of metrics train/<agent>/<key>
BY_AGENT: Final = (
    ("calls", "Calls per trajectory", "neither 0 nor at the limit", False),
    ("response_tokens", "Response length, tokens", "stable", False),
    ("grad_norm", "Gradient norm before clipping", "stable, no spikes", False),
    (
        "amplification_global",
        "λ with a global baseline",
        "near 1, or normalise per agent",
        False,
    ),
    ("amplification", "λ of this run's normaliser", "1 for dr_mas", False),
    ("entropy", "Entropy, nats", "falls slowly", False),
    ("clipped", "Tokens clipped", "below 20 %", True),
    ("valid", "Valid responses", "towards 100 %", True),
    ("groups_all_equal", "Groups without signal", "below 80 %", True),
    ("mismatch", "Trainer–engine mismatch, nats", "below 0.02", False),
    ("reward_mean", "Credit of the agent's turns", "rises", False),
    ("reward", "Reward paid to the agent itself", "rises, or stays in a zero-sum game", False),
    ("kl", "KL to the reference, nats", "below 0.5", False),
)
TEAM: Final = (
    (
        "success",
        "Success",
        "rises",
        True,
        ("train", "validation", "validation-greedy", "test", "test-greedy"),
    ),
    ("reward", "Reward", "rises", False, ("train", "validation", "validation-greedy")),
)
LABELS: Final = {
    "train": "training",
    "validation": "validation",
    "validation-greedy": "validation, greedy",
    "test": "test",
    "test-greedy": "test, greedy",
}


def find_charts(run: RunFiles, agents: Sequence[str]) -> list[dict[str, Any]]:
    """Return every chart for which the run has points."""
    charts = [
        Chart(
            key,
            title,
            healthy,
            share,
            [
                Series(LABELS[phase], None, code, _points(run, f"{phase}/{key}"))
                for code, phase in enumerate(phases)
            ],
        )
        for key, title, healthy, share, phases in TEAM
    ]
    charts[1:1] = _sources(run)
    charts += [
        Chart(
            key,
            title,
            healthy,
            share,
            [
                Series(name, place, place, _points(run, f"train/{name}/{key}"))
                for place, name in enumerate(agents)
            ],
        )
        for key, title, healthy, share in BY_AGENT
    ]
    return [asdict(chart) for chart in map(_drawn, charts) if chart.series]


def thin(points: Sequence[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    """Keep at most ``count`` + 1 points, evenly spread and with the last one.

    >>> thin([(0, 0.0), (1, 0.5), (2, 1.0), (3, 0.5)], 2)
    [(0, 0.0), (2, 1.0), (3, 0.5)]
    """
    step = max(1, math.ceil(len(points) / count))
    kept = list(points[::step])
    if points and kept[-1] != points[-1]:
        kept.append(points[-1])
    return kept


def _points(run: RunFiles, name: str) -> list[tuple[int, float]]:
    finite = [(x, value) for x, value in run.series(name) if math.isfinite(value)]
    return [(x, float(f"{value:.5g}")) for x, value in thin(finite, MAX_POINTS)]


def _drawn(chart: Chart) -> Chart:
    series = [curve for curve in chart.series if curve.points]
    return Chart(chart.key, chart.title, chart.healthy, chart.share, series)


def _sources(run: RunFiles) -> list[Chart]:
    """Return success by data source, greedy where that was evaluated."""
    charts = []
    for phase in ("validation-greedy", "validation"):
        pattern = re.compile(rf"{phase}/source/(.+)/success")
        names = dict.fromkeys(
            match[1] for record in run.records for name in record if (match := pattern.fullmatch(name))
        )
        series = [
            Series(name, None, code, _points(run, f"{phase}/source/{name}/success"))
            for code, name in enumerate(list(names)[:MAX_SOURCES])
        ]
        charts.append(Chart("source", f"Success by data source, {LABELS[phase]}", "rises", True, series))
    # of a single source it would be the curve of success once more
    return [chart for chart in charts if len(chart.series) > 1][:1]
