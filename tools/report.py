"""Show runs: ``drmas report outputs/search [more folders] [--plot FILE] [--export FOLDER] [--output FILE] [--no-page]``.

A folder is a run, or a sweep that holds runs. Writes one page for the browser, also of runs that crashed or still go. Of finished runs it
prints a Markdown table and draws the learning curves into one picture.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import drmas_pl  # noqa: F401
except ModuleNotFoundError as error:
    raise SystemExit(
        "drmas_pl is not installed here; in the repository's folder run: pip install -e ."
    ) from error

from drmas_pl.errors import DataError
from drmas_pl.report.exports import export_runs, group_runs
from drmas_pl.report.figures import draw_comparison
from drmas_pl.report.run_files import find_run_folders, read_run
from drmas_pl.report.run_page import MAX_BYTES, write_page
from drmas_pl.tools.program import guarded
from drmas_pl.utils.foreign_files import parse_json, read_text


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Summary and metrics of one run folder."""

    path: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(prog="drmas report", description="Show and compare runs.")
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or sweeps that hold runs")
    parser.add_argument(
        "--plot",
        type=Path,
        default=None,
        help="picture of the learning curves, by default curves.png in the first folder",
    )
    parser.add_argument(
        "--export",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="write scores of runs and of groups of seeds, and all curves, as CSV, PNG and SVG, also of runs that have not ended",
    )
    parser.add_argument(
        "--page", action=argparse.BooleanOptionalAction, default=True, help="whether to write a page"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        help="the page, by default report.html in the run's folder, or comparison.html in the first folder for several runs",
    )
    parser.add_argument(
        "--megabytes",
        type=float,
        default=MAX_BYTES / 1e6,
        help="size of the page that conversations are sampled for, %(default)g by default",
    )
    arguments = parser.parse_args(argv)
    return guarded(lambda: show(arguments))


def show(arguments: argparse.Namespace) -> int:
    """Write what the arguments ask for and return the exit code."""
    folders = [run for folder in arguments.folders for run in find_folders(folder)]
    runs = [_read(folder) for folder in folders if (folder / "summary.json").is_file()]
    if runs:
        print(table(runs))
        picture = arguments.plot or arguments.folders[0] / "curves.png"
        draw_comparison(group_runs([read_run(run.path) for run in runs]), [picture])
        print(f"\ncurves {picture}")
    if arguments.export is not None:
        for path in export_runs([read_run(folder) for folder in folders], arguments.export):
            print(f"export {path}")
    if arguments.page:
        name = arguments.folders[0] / "comparison.html" if len(folders) > 1 else folders[0] / "report.html"
        page = arguments.output or name
        write_page(folders, page, max_bytes=int(arguments.megabytes * 1e6))
        print(f"page   {page}")
    elif not runs and arguments.export is None:
        raise DataError(
            f"no finished run in {arguments.folders[0]}; without --no-page it is shown as far as it is"
        )
    return 0


def find_folders(folder: Path) -> list[Path]:
    """Return the runs in ``folder``, finished or not.

    Raises:
        DataError: There is none.
    """
    folders = find_run_folders(folder)
    if not folders:
        raise DataError(
            f"no run in {folder}; expected config.yaml, metrics.jsonl or summary.json in it or in its folders"
        )
    return folders


def table(runs: Sequence[FinishedRun]) -> str:
    """Return a Markdown table: sampled and greedy score before and after, calls per agent, length; columns have the logged names.

    Args:
        runs: At least one run.
    """
    agents = list(dict.fromkeys(agent for run in runs for agent in run.summary["calls_per_agent"]))
    head = [
        "run",
        "validation/success",
        "validation-greedy/success",
        *(f"validation/{agent}/calls" for agent in agents),
        "iterations",
        "minutes",
    ]
    rows = [head, ["---"] * len(head)]
    for run in runs:
        try:
            rows.append(_row(run, agents))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(run.path, error) from error
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _row(run: FinishedRun, agents: Sequence[str]) -> list[str]:
    """Return a run's cells."""
    summary = run.summary
    before = summary["calls_per_agent_before"]
    after = summary["calls_per_agent"]
    return [
        run.path.name,
        _change(summary["before"], summary["after"]),
        _change(summary["before_greedy"], summary["after_greedy"]),
        *(f"{before[agent]:.2f} → {after[agent]:.2f}" if agent in after else "–" for agent in agents),
        str(summary["iterations"]),
        f"{summary['seconds'] / 60:.1f}",
    ]


def _damaged(folder: Path, error: Exception) -> DataError:
    return DataError(
        f"{folder / 'summary.json'} is damaged ({type(error).__name__}: {error}); delete it, and the run is shown as far as it is"
    )


def _read(folder: Path) -> FinishedRun:
    try:
        summary = parse_json(read_text(folder / "summary.json"))
        metrics = [parse_json(line) for line in read_text(folder / "metrics.jsonl").splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is not a whole run folder: {error}") from error
    if not isinstance(summary, dict) or not isinstance(summary.get("calls_per_agent"), dict):
        raise _damaged(folder, ValueError("calls_per_agent is missing"))
    return FinishedRun(folder, summary, metrics)


def _change(before: float | None, after: float | None) -> str:
    return (
        "–"
        if before is None or after is None
        else f"{100 * before:.1f} → {100 * after:.1f} ({100 * (after - before):+.1f})"
    )


if __name__ == "__main__":
    sys.exit(main())
