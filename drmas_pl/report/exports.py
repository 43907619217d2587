"""Compared runs for other programs: tables of their scores and curves as CSV, their figure as PNG and SVG."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

from drmas_pl.report.comparison import compare
from drmas_pl.report.confidence import aggregate_interval, mean_interval
from drmas_pl.report.figures import draw_comparison
from drmas_pl.report.outcomes import SPLITS, find_outcomes
from drmas_pl.report.run_files import RunFiles
from drmas_pl.utils.atomic import write_atomically

# Runs from which on a group is summed up by its interquartile mean as well.
LEAST_SEEDS: Final = 3
GroupedRuns = Sequence[tuple[str, Sequence[RunFiles]]]


def group_runs(runs: Sequence[RunFiles]) -> list[tuple[str, list[RunFiles]]]:
    """Put runs together that differ by their seed alone, and name each group by what is its own.

    Args:
        runs: At least one run.
    """
    if len(runs) == 1:
        return [(runs[0].path.name, [runs[0]])]
    groups = []
    for group in compare(runs, [[] for _ in runs])["groups"]:
        members = [runs[place] for place in group["runs"]]
        named = group["label"] != "same settings" or len(members) > 1
        groups.append((group["label"] if named else members[0].path.name, members))
    return groups


def export_runs(runs: Sequence[RunFiles], folder: Path) -> list[Path]:
    """Write ``runs.csv``, ``groups.csv``, ``curves.csv``, ``curves.png`` and ``curves.svg``, and return where they are.

    Args:
        runs: At least one run.
        folder: Folder to write to; made if missing.
    """
    groups = group_runs(runs)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "runs.csv": runs_table(groups),
        "groups.csv": groups_table(groups),
        "curves.csv": curves_table(groups),
    }
    for name, rows in tables.items():
        write_atomically(folder / name, to_csv(rows))
    figures = [folder / "curves.png", folder / "curves.svg"]
    draw_comparison(groups, figures)
    return [*(folder / name for name in tables), *figures]


def to_csv(rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def runs_table(groups: GroupedRuns) -> list[list[Any]]:
    """Return one row a run: its group, seed, scores before and after, and the settings by which runs differ; the head comes first."""
    runs = [run for _, members in groups for run in members]
    differing = compare(runs, [[] for _ in runs])["settings"] if len(runs) > 1 else []
    splits = list(SPLITS)
    head = ["run", "group", "seed", "iterations", "finished"]
    head += [f"{split}/success {end}" for split in splits for end in ("before", "after")]
    rows: list[list[Any]] = [[*head, *(key for key, *_ in differing)]]
    labels = [label for label, members in groups for _ in members]
    for place, (label, run) in enumerate(zip(labels, runs, strict=True)):
        scores = _scores(run)
        cells = [scores.get(split, {}).get(end) for split in splits for end in ("before", "after")]
        own = [values[place] for _, *values in differing]
        rows.append(
            [str(run.path), label, run.setting("seed", ""), run.iteration, run.finished, *cells, *own]
        )
    return rows


def groups_table(groups: GroupedRuns) -> list[list[Any]]:
    """Return a row for each score of each group: mean and 95 % interval over seeds, with three of them also the interquartile mean.

    The interquartile mean is taken over seeds and data sources, and its interval by a bootstrap of the seeds of every source.
    """
    rows: list[list[Any]] = [["group", "split", "seeds", "mean", "low", "high", "iqm", "iqm low", "iqm high"]]
    for label, runs in groups:
        for split in SPLITS:
            values = [
                score for run in runs if (score := _scores(run).get(split, {}).get("after")) is not None
            ]
            if not values:
                continue
            robust: Sequence[Any] = ("", "", "")
            if len(values) >= LEAST_SEEDS:
                robust = aggregate_interval(_by_source(runs, split) or [values])
            rows.append([label, split, len(values), *mean_interval(values), *robust])
    return rows


def curves_table(groups: GroupedRuns) -> list[list[Any]]:
    """Return one row for each number of each record: run, group, seed, iteration, metric and value."""
    rows: list[list[Any]] = [["run", "group", "seed", "iteration", "metric", "value"]]
    for label, runs in groups:
        for run in runs:
            names = dict.fromkeys(name for record in run.records for name in record if name != "iteration")
            where = [str(run.path), label, run.setting("seed", "")]
            rows += [
                [*where, iteration, name, value] for name in names for iteration, value in run.series(name)
            ]
    return rows


def _scores(run: RunFiles) -> dict[str, Mapping[str, Any]]:
    """Return scores by split: ``before`` and ``after``, None where there is none."""
    return {
        outcome["split"]: {
            "before": None if outcome["before"] is None else outcome["before"][0],
            "after": outcome["after"][0],
        }
        for outcome in find_outcomes(run, {})
    }


def _by_source(runs: Sequence[RunFiles], split: str) -> list[list[float]]:
    """Return the last score of every run by data source, of sources that all runs have."""
    pattern = f"{split}/source/"
    last = [
        {
            name: run.series(name)[-1][1]
            for record in run.records
            for name in record
            if name.startswith(pattern) and name.endswith("/success")
        }
        for run in runs
    ]
    shared = sorted(set.intersection(*(set(own) for own in last)))
    return [[own[name] for own in last] for name in shared]
