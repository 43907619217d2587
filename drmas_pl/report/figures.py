"""Figures in one style: one colour, marker and dash a curve, names beside the ends of curves, bands over seeds.

Matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from drmas_pl.report.confidence import mean_interval
from drmas_pl.report.palette import colour_of, line_style
from drmas_pl.report.run_files import RunFiles

Points = Sequence[tuple[float, float]]
STYLE: Final[dict[str, Any]] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    # text stays text, and the same figure is the same file
    "svg.fonttype": "none",
    "svg.hashsalt": "drmas_pl",
}
# Metrics of a comparison, and what stands beside their axis.
PANELS: Final = (
    ("validation/success", "validation success, sampled"),
    ("validation-greedy/success", "validation success, greedy"),
    ("train/reward", "reward in training"),
    ("train/turns", "turns of a trajectory"),
)
# Markers on a curve; more would hide it.
MARKED: Final = 12
# Share of a panel's height that a line of a name takes.
APART: Final = 0.075
# Letters in a line of a name, and lines.
NAME_WIDTH: Final = 26
NAME_LINES: Final = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a figure.

    Attributes:
        label: Its name.
        place: Number of its colour, marker and dash.
        points: Iterations and values.
        band: Lower and upper end of the interval at every point; empty where there is none.
        faint: Whether it is drawn behind the others.
    """

    label: str
    place: int
    points: Points
    band: Points = ()
    faint: bool = False


@contextmanager
def styled() -> Iterator[Any]:
    """Give ``matplotlib.pyplot`` in the style of this library, without a window; what was set before holds again afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    options: Any = STYLE
    with plt.rc_context(options):
        yield plt


def draw_curves(axis: Any, curves: Sequence[Curve]) -> None:
    """Draw curves with their bands, and write their names beside their ends.

    Args:
        axis: Matplotlib's axis.
        curves: What to draw; those without points are left out.
    """
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    drawn = [curve for curve in curves if curve.points]
    for curve in drawn:
        xs, ys = zip(*curve.points, strict=True)
        alpha = 0.45 if curve.faint else 1.0
        every = max(1, len(xs) // MARKED)
        axis.plot(xs, ys, alpha=alpha, markevery=every, **line_style(curve.place))
        if curve.band:
            low, high = zip(*curve.band, strict=True)
            axis.fill_between(xs, low, high, color=colour_of(curve.place), alpha=0.18, linewidth=0)
    _label_ends(axis, drawn)


def _label_ends(axis: Any, curves: Sequence[Curve]) -> None:
    """Write names to the right of the axis at the heights of the curves' ends, moved apart where these are too near."""
    low, high = axis.get_ylim()
    names = {
        id(curve): textwrap.fill(curve.label, NAME_WIDTH, max_lines=NAME_LINES, placeholder=" …")
        for curve in curves
    }
    lines = max((name.count("\n") + 1 for name in names.values()), default=1)
    ends = sorted((curve.points[-1][1] - low) / (high - low) for curve in curves)
    order = sorted(curves, key=lambda curve: curve.points[-1][1])
    for curve, height in zip(order, spread(ends, APART * lines), strict=True):
        axis.annotate(
            names[id(curve)],
            xy=(1.0, height),
            xycoords="axes fraction",
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=colour_of(curve.place),
        )


def spread(heights: Sequence[float], least: float) -> list[float]:
    """Move ascending numbers up so that each is at least ``least`` above the one before; the whole stays about its middle.

    >>> [round(height, 2) for height in spread([0.5, 0.5, 0.9], 0.1)]
    [0.47, 0.57, 0.87]
    """
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + least) if moved else height)
    if not moved:
        return []
    shift = sum(moved) / len(moved) - sum(heights) / len(heights)
    return [height - shift for height in moved]


def seed_curve(label: str, place: int, series: Sequence[Sequence[tuple[int, float]]]) -> Curve:
    """Return the mean over seeds with its 95 % interval, at the iterations that every seed has.

    Args:
        label: Name of the curve.
        place: Its colour, marker and dash.
        series: Points of each seed.
    """
    by_seed = [dict(points) for points in series]
    shared = sorted(set.intersection(*(set(values) for values in by_seed))) if by_seed else []
    intervals = [mean_interval([values[iteration] for values in by_seed]) for iteration in shared]
    points = [(iteration, middle) for iteration, (middle, _, _) in zip(shared, intervals, strict=True)]
    band = [(low, high) for _, low, high in intervals] if len(series) > 1 else []
    return Curve(label, place, points, band)


def draw_comparison(groups: Sequence[tuple[str, Sequence[RunFiles]]], paths: Sequence[Path]) -> None:
    """Draw scores of groups of seeds over the iterations.

    Args:
        groups: Name and runs of each group, at least one.
        paths: Files to write; their endings say as what, such as ``.png`` and ``.svg``.
    """
    panels = [
        (metric, title)
        for metric, title in PANELS
        if any(run.series(metric) for _, runs in groups for run in runs)
    ]
    panels = panels or [PANELS[0]]
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    with styled() as plt:
        figure, axes = plt.subplots(
            rows, columns, figsize=(6.4 * columns, 3.6 * rows), constrained_layout=True, squeeze=False
        )
        for axis, (metric, title) in zip(axes.flat, panels):
            if metric.endswith("/success"):
                axis.set_ylim(0, 1)
            curves = [
                seed_curve(label, place, [points for run in runs if (points := run.series(metric))])
                for place, (label, runs) in enumerate(groups)
            ]
            draw_curves(axis, curves)
            axis.set(title=title, xlabel="iteration")
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        _save(figure, paths)
        plt.close(figure)


def _save(figure: Any, paths: Sequence[Path]) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a date would make every file another one
        options = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=120, **options)
