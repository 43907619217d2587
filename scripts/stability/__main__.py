"""Test the claim of per-agent normalisation: ``python -m scripts.stability --output outputs/stability [--part a|b] [--seeds 5]``.

Part A compares the predicted with the measured second moment of frozen policies' gradients, part B trains teams. Runs that are already in
the output folder are not repeated. Prints tables; writes them with pictures and ``results.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import drmas_pl  # noqa: F401
except ModuleNotFoundError as error:
    raise SystemExit(
        "drmas_pl is not installed here; in the repository's folder run: pip install -e ."
    ) from error

from drmas_pl.errors import ConfigError
from drmas_pl.tools.program import configure_logging, guarded

if TYPE_CHECKING:
    from scripts.stability.training import Size

FROZEN_TASKS = 48


@dataclass(frozen=True, slots=True)
class Report:
    """What a part found: plain numbers and Markdown."""

    results: dict[str, Any]
    tables: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    from scripts.stability.regimes import REGIMES

    parser = argparse.ArgumentParser(
        prog="stability.py", description="Compare normalisers: frozen policies (a) and training (b)."
    )
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/stability"), help="folder of runs, tables and pictures"
    )
    parser.add_argument("--part", choices=("a", "b"), default=None, help="only this part")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0")
    parser.add_argument(
        "--regimes", nargs="+", choices=tuple(REGIMES), default=list(REGIMES), help="regimes of part B"
    )
    arguments = parser.parse_args(argv)
    configure_logging()
    return guarded(lambda: run(arguments))


def run(arguments: argparse.Namespace) -> int:
    """Run the parts asked for, write results, tables and pictures, and print the tables."""
    import torch

    from scripts.stability.training import Size

    if arguments.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {arguments.seeds}")
    torch.set_num_threads(1)
    output, seeds = arguments.output, range(arguments.seeds)
    parts: dict[str, Report] = {}
    if arguments.part in (None, "a"):
        parts["a"] = run_frozen(output, seeds=seeds, size=Size(tasks=FROZEN_TASKS))
    if arguments.part in (None, "b"):
        parts["b"] = run_training(output, regimes=arguments.regimes, seeds=seeds, size=Size())
    tables = "\n\n".join(report.tables for report in parts.values())
    (output / "tables.md").write_text(tables + "\n", encoding="utf-8")
    results = {name: report.results for name, report in parts.items()}
    (output / "results.json").write_text(
        json.dumps(results, indent=1, default=asdict) + "\n", encoding="utf-8"
    )
    print(f"{tables}\n\nresults, tables and pictures are in {output}")
    return 0


def run_frozen(output: Path, *, seeds: Sequence[int], size: Size) -> Report:
    """Run part A and draw it."""
    from scripts.stability.frozen import frozen_points
    from scripts.stability.moments import SYMBOLS
    from scripts.stability.pictures import draw_frozen
    from scripts.stability.summary import agreement_table, frozen_summary, frozen_table

    points = frozen_points(seeds, size=size)
    draw_frozen(points, output / "stability-frozen.png")
    found = frozen_summary(points)
    share = f"Median share of the covariance term in what was measured: {found['covariance_share'].text(0, scale=100)} %."
    agreement = f"{agreement_table(found['agreement'], SYMBOLS)}\n\n{share}"
    return Report(found, f"## Frozen policies: λ → measured\n\n{frozen_table(found)}\n\n{agreement}")


def run_training(output: Path, *, regimes: Sequence[str], seeds: Sequence[int], size: Size) -> Report:
    """Run part B and draw it."""
    from scripts.stability.pictures import draw_gradients, draw_moments, draw_success
    from scripts.stability.regimes import REGIMES
    from scripts.stability.summary import (
        agreement_table,
        gradient_table,
        success_table,
        training_summary,
    )
    from scripts.stability.training import train_all

    records = train_all(output / "runs", regimes=regimes, seeds=seeds, size=size)
    for draw, name in ((draw_success, "success"), (draw_gradients, "gradients"), (draw_moments, "moments")):
        draw(records, output / f"stability-{name}.png")
    found = training_summary(records)
    titles = {name: regime.title for name, regime in REGIMES.items()}
    tables = (
        f"## Training: success after the last iteration, percent\n\n{success_table(found)}",
        f"## Training: gradient norms before clipping\n\n{gradient_table(found)}",
        f"## Training: λ against the measured ratio\n\n{agreement_table(found['agreement'], titles)}",
    )
    return Report(found, "\n\n".join(tables))


if __name__ == "__main__":
    sys.exit(main())
