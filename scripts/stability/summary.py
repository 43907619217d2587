"""Numbers and Markdown tables of the stability experiment, from points of part A and records of part B. Units of resampling are seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from drmas_pl.workers.learner import UpdateSettings
from scripts.stability.frozen import Point
from scripts.stability.intervals import (
    SPIKE,
    Interval,
    bootstrap,
    log_correlation,
    percentile,
    spike_share,
    typical_factor,
)
from scripts.stability.moments import NORMALIZERS, SYMBOLS
from scripts.stability.regimes import REGIMES
from scripts.stability.training import Record

REFERENCE = "dr_mas"
CLIP = UpdateSettings().max_grad_norm
Pairs = list[tuple[float, float]]


def frozen_summary(points: Sequence[Point]) -> dict[str, Any]:
    """Return per gap, agent and normaliser the mean λ and the mean measured ratio, and how well they agree.

    Args:
        points: At least one.
    """
    cells: dict[tuple[str, float, str, str], list[Point]] = {}
    for point in points:
        cells.setdefault((point.gap, point.size, point.agent, point.normalizer), []).append(point)
    rows = [
        {
            "gap": gap,
            "size": size,
            "agent": agent,
            "normalizer": normalizer,
            "predicted": _mean(point.moments.predicted for point in found),
            "measured": bootstrap([point.moments.measured for point in found], statistics.fmean),
        }
        for (gap, size, agent, normalizer), found in cells.items()
    ]
    by_seed = [
        [point for point in points if point.seed == seed] for seed in sorted({point.seed for point in points})
    ]
    share = bootstrap(
        by_seed, lambda seeds: statistics.median(_covariance_share(point) for one in seeds for point in one)
    )
    agreement = {
        name: _agreement(
            [[_pair(point) for point in one if name in ("all", point.normalizer)] for one in by_seed]
        )
        for name in ("all", *NORMALIZERS)
    }
    return {"rows": rows, "covariance_share": share, "agreement": agreement}


def frozen_table(summary: dict[str, Any]) -> str:
    """Return a Markdown table ``λ → measured`` with a column per normaliser."""
    found = {(row["gap"], row["size"], row["agent"], row["normalizer"]): row for row in summary["rows"]}
    lines = [["gap", "agent", *(SYMBOLS[name] for name in NORMALIZERS)]]
    for gap, size, agent in dict.fromkeys(key[:3] for key in found):
        cells = (found.get((gap, size, agent, name)) for name in NORMALIZERS)
        texts = (
            "–" if cell is None else f"{cell['predicted']:.2f} → {cell['measured'].value:.2f}"
            for cell in cells
        )
        lines.append([f"{gap} {size:g}", agent, *texts])
    return markdown(lines)


def training_summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return per regime and normaliser success and gradient norms with intervals, and the agreement of λ with the measured ratio.

    Args:
        records: At least one; every combination has the same seeds.
    """
    cells: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        cells.setdefault((record["regime"], record["normalizer"]), []).append(record)
    rows = [_training_row(cells, regime, normalizer) for regime, normalizer in cells]
    by_seed = [
        [record for record in records if record["seed"] == seed]
        for seed in sorted({record["seed"] for record in records})
    ]
    agreement = {
        regime: _agreement(
            [
                [pair for record in one if record["regime"] == regime for pair in _moment_pairs(record)]
                for one in by_seed
            ]
        )
        for regime in dict.fromkeys(regime for regime, _ in cells)
    }
    everything = _agreement([[pair for record in one for pair in _moment_pairs(record)] for one in by_seed])
    return {"rows": rows, "agreement": {"all": everything, **agreement}}


def success_table(summary: dict[str, Any]) -> str:
    """Return a Markdown table of final success, one line per regime, percent with intervals."""
    found = {(row["regime"], row["normalizer"]): row["success"].text(1, scale=100) for row in summary["rows"]}
    lines = [["regime", *(SYMBOLS[name] for name in NORMALIZERS)]]
    for regime in dict.fromkeys(key[0] for key in found):
        lines.append([REGIMES[regime].title, *(found.get((regime, name), "–") for name in NORMALIZERS)])
    return markdown(lines)


def gradient_table(summary: dict[str, Any]) -> str:
    """Return a Markdown table of gradient norms, one line per regime, agent and normaliser."""
    shares = ("no signal", f"above {SPIKE:.0f} medians", f"clipped at {CLIP:g}")
    lines = [
        ["regime", "agent", "normaliser", "λ", "median norm", f"× {REFERENCE}", "99th percentile", *shares]
    ]
    for row in summary["rows"]:
        for agent, cell in row["agents"].items():
            norms = [cell[name].text() for name in ("median", "factor", "p99")]
            shares = (
                f"{100 * cell['no_signal']:.0f} %",
                f"{cell['spikes'].text(1, scale=100)} %",
                f"{cell['clipped'].text(0, scale=100)} %",
            )
            lines.append(
                [
                    REGIMES[row["regime"]].title,
                    agent,
                    SYMBOLS[row["normalizer"]],
                    f"{cell['amplification']:.2f}",
                    *norms,
                    *shares,
                ]
            )
    return markdown(lines)


def agreement_table(agreement: dict[str, Any], names: Mapping[str, str]) -> str:
    """Return a Markdown table of how well λ predicts the measured ratio.

    Args:
        agreement: By key, as the summaries hold it.
        names: What people call the keys; others stay as they are.
    """
    lines = [["", "correlation of logarithms", "median factor between them", "measurements"]]
    for key, cell in agreement.items():
        lines.append(
            [names.get(key, key), cell["correlation"].text(), cell["factor"].text(), str(cell["count"])]
        )
    return markdown(lines)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first line is the head.

    >>> print(markdown([["a", "b"], ["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([body[0], "|" + "---|" * len(lines[0]), *body[1:]])


def _training_row(cells: dict[tuple[str, str], list[Record]], regime: str, normalizer: str) -> dict[str, Any]:
    """Summarise one combination, and compare its gradient norms with those of the reference, seed by seed."""
    records, reference = cells[regime, normalizer], cells.get((regime, REFERENCE))
    highlights = {
        name: _mean(record["highlights"].get(name) for record in records) for name in records[0]["highlights"]
    }
    agents = {agent: _agent_row(records, reference, agent) for agent in records[0]["agents"]}
    success = bootstrap(records, lambda some: _mean(record["success"] for record in some))
    return {
        "regime": regime,
        "normalizer": normalizer,
        "success": success,
        "highlights": highlights,
        "agents": agents,
    }


def _agent_row(records: Sequence[Record], reference: Sequence[Record] | None, agent: str) -> dict[str, Any]:
    """Summarise one agent of one combination over seeds and steps; gradient norms are those before clipping."""
    norms = _pooled(agent, "grad_norm")
    both = list(zip(records, reference, strict=True)) if reference else []
    return {
        **{
            name: _mean(_pooled(agent, name)(records))
            for name in ("amplification", "amplification_global", "no_signal")
        },
        "calls": [_mean(record["agents"][agent]["calls"][at] for record in records) for at in (0, -1)],
        "median": bootstrap(records, lambda some: percentile(norms(some), 0.5)),
        "p99": bootstrap(records, lambda some: percentile(norms(some), 0.99)),
        "spikes": bootstrap(records, lambda some: _mean(spike_share(norms([record])) for record in some)),
        "clipped": bootstrap(records, lambda some: _mean(float(norm > CLIP) for norm in norms(some))),
        "factor": bootstrap(both, lambda some: _ratio(norms, some))
        if both
        else Interval(*[float("nan")] * 3),
    }


def _pooled(agent: str, name: str) -> Callable[[Sequence[Record]], list[float]]:
    """Return a function that collects one metric of an agent over the steps of several records."""
    return lambda records: [
        value for record in records for value in record["agents"][agent][name] if value is not None
    ]


def _ratio(norms: Callable[[Sequence[Record]], list[float]], both: Sequence[tuple[Record, Record]]) -> float:
    mine, theirs = zip(*both, strict=True)
    return percentile(norms(mine), 0.5) / percentile(norms(theirs), 0.5)


def _agreement(by_seed: Sequence[Pairs]) -> dict[str, Any]:
    """Compare predicted with measured, resampling seeds."""

    def pooled(some: Sequence[Pairs]) -> Pairs:
        return [pair for pairs in some for pair in pairs]

    return {
        "correlation": bootstrap(by_seed, lambda some: log_correlation(pooled(some))),
        "factor": bootstrap(by_seed, lambda some: typical_factor(pooled(some))),
        "count": len(pooled(by_seed)),
    }


def _pair(point: Point) -> tuple[float, float]:
    return point.moments.predicted, point.moments.measured


def _moment_pairs(record: Record) -> Pairs:
    return [(found["predicted"], found["measured"]) for found in record["moments"]]


def _covariance_share(point: Point) -> float:
    return abs(point.moments.covariance) / point.moments.measured


def _mean(values: Iterable[float | None]) -> float:
    """Average what is there; NaN for nothing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else float("nan")
