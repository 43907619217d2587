"""Pictures of the stability experiment, each readable at the width of a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.stability.frozen import Point
from scripts.stability.intervals import percentile
from scripts.stability.moments import NORMALIZERS, SYMBOLS
from scripts.stability.regimes import REGIMES
from scripts.stability.training import Record

COLORS = dict(zip(NORMALIZERS, ("C3", "C1", "C4", "C0"), strict=True))
LABELS = {
    name: f"${symbol.replace('μ', chr(92) + 'mu').replace('σ', chr(92) + 'sigma')}$"
    for name, symbol in SYMBOLS.items()
}


def draw_frozen(points: Sequence[Point], path: Path) -> None:
    """Draw predicted and measured amplification of part A: along the price and along the bonus, per agent."""
    agents = sorted({point.agent for point in points}, reverse=True)
    with _figure(path, 2, len(agents), (8, 6)) as axes:
        for line, gap in zip(axes, ("price", "bonus"), strict=True):
            for axis, agent in zip(line, agents, strict=True):
                _draw_sweep(axis, [point for point in points if point.gap == gap and point.agent == agent])
                axis.set(
                    title=f"{agent}, backup's {gap}",
                    xlabel=gap,
                    ylabel="amplification",
                    xscale="symlog" if gap == "price" else "log",
                )
                axis.set_yscale("log")
                axis.sharey(axes[0][0])
        axes[1][1].legend(fontsize=9, title="lines: λ; dots: measured", title_fontsize=9, loc="lower left")


def draw_moments(records: Sequence[Record], path: Path) -> None:
    """Draw measured against predicted amplification during training, one dot a measurement."""
    with _figure(path, 1, 1, (6, 5)) as axes:
        axis = axes[0][0]
        for name in reversed(NORMALIZERS):
            found = [
                m
                for record in records
                if record["normalizer"] == name
                for m in record["moments"]
                if m["measured"] > 0
            ]
            axis.scatter(
                [m["predicted"] for m in found],
                [m["measured"] for m in found],
                s=8,
                alpha=0.5,
                color=COLORS[name],
                label=LABELS[name],
            )
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="predicted: λ",
            ylabel="measured ratio of gradient second moments",
        )
        axis.axline((1, 1), (10, 10), color="0.5", linewidth=1, label="equal")
        axis.legend(fontsize=9)


def draw_success(records: Sequence[Record], path: Path) -> None:
    """Draw validation success over iterations, one panel a regime: mean over seeds, and their range."""
    regimes = list(dict.fromkeys(record["regime"] for record in records))
    rows = -(-len(regimes) // 3)
    with _figure(path, rows, min(len(regimes), 3), (9, 2.9 * rows)) as axes:
        panels = [axis for line in axes for axis in line]
        for axis in panels[len(regimes) :]:
            axis.axis("off")
        for axis, regime in zip(panels, regimes, strict=False):
            for name in NORMALIZERS:
                curves = [
                    record["curve"]
                    for record in records
                    if record["regime"] == regime and record["normalizer"] == name
                ]
                steps = [at for at, _ in curves[0]] if curves else []
                by_step = [[curve[index][1] for curve in curves] for index in range(len(steps))]
                axis.plot(
                    steps,
                    [statistics.fmean(values) for values in by_step],
                    color=COLORS[name],
                    marker="o",
                    ms=3,
                    label=LABELS[name],
                )
                axis.fill_between(
                    steps,
                    [min(v) for v in by_step],
                    [max(v) for v in by_step],
                    color=COLORS[name],
                    alpha=0.15,
                    linewidth=0,
                )
            axis.set(title=REGIMES[regime].title, xlabel="iteration", ylabel="success")
            axis.set_ylim(top=1)
        panels[0].figure.legend(
            *panels[0].get_legend_handles_labels(), ncols=len(NORMALIZERS), loc="outside lower center"
        )


def draw_gradients(records: Sequence[Record], path: Path) -> None:
    """Draw every step's gradient norm before clipping, one panel a regime; bars mark median and 99th percentile."""
    regimes = list(dict.fromkeys(record["regime"] for record in records))
    rows = -(-len(regimes) // 3)
    with _figure(path, rows, min(len(regimes), 3), (9, 3.2 * rows)) as axes:
        panels = [axis for line in axes for axis in line]
        for axis in panels[len(regimes) :]:
            axis.axis("off")
        for axis, regime in zip(panels, regimes, strict=False):
            agents = list(REGIMES[regime].roles)
            for at, (agent, name) in enumerate((agent, name) for agent in agents for name in NORMALIZERS):
                own = [
                    record
                    for record in records
                    if record["regime"] == regime and record["normalizer"] == name
                ]
                norms = [value for record in own for value in record["agents"][agent]["grad_norm"] if value]
                place = at + at // len(NORMALIZERS)
                spread = [place + 0.6 * ((index * 0.618) % 1 - 0.5) for index in range(len(norms))]
                axis.scatter(spread, norms, s=4, alpha=0.5, color=COLORS[name], linewidths=0)
                for share in (0.5, 0.99) if norms else ():
                    axis.hlines(
                        percentile(norms, share),
                        place - 0.4,
                        place + 0.4,
                        color="black",
                        linewidth=1.5 if share == 0.5 else 0.8,
                    )
            middle = (len(NORMALIZERS) - 1) / 2
            axis.set(title=REGIMES[regime].title, yscale="log", ylabel="gradient norm")
            axis.set_xticks([middle + index * (len(NORMALIZERS) + 1) for index in range(len(agents))], agents)
        dots = [panels[0].scatter([], [], color=COLORS[name], s=12) for name in NORMALIZERS]
        panels[0].figure.legend(
            dots,
            LABELS.values(),
            ncols=len(dots),
            loc="outside lower center",
            title="bars: median, 99th percentile",
        )


def _draw_sweep(axis: Any, points: Sequence[Point]) -> None:
    """Draw one agent's sweep: λ as lines, the measured ratio as dots with its range over seeds."""
    for name in NORMALIZERS:
        own = [point for point in points if point.normalizer == name]
        sizes = sorted({point.size for point in own})
        at = [[point.moments for point in own if point.size == size] for size in sizes]
        measured = [[moments.measured for moments in found] for found in at]
        axis.plot(
            sizes,
            [statistics.fmean(m.predicted for m in found) for found in at],
            color=COLORS[name],
            linewidth=1,
            label=LABELS[name],
        )
        middle = [statistics.fmean(values) for values in measured]
        reach = [
            [m - min(v) for m, v in zip(middle, measured)],
            [max(v) - m for m, v in zip(middle, measured)],
        ]
        axis.errorbar(sizes, middle, yerr=reach, color=COLORS[name], fmt="o", ms=4, linewidth=1)


@contextmanager
def _figure(path: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Give the axes of a new figure, rows by columns, and write it to ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, constrained_layout=True, squeeze=False)
    yield axes
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
