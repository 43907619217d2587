"""Kill runs, fill disks, damage folders and break code, and count what came of it: ``python -m scripts.torture [--short]``.

Nothing may be lost, executed, left behind or told as a traceback. A run that was killed must become, number for number, the one that was
not.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# models are too small for threads, and a process that forks must have none
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from scripts.durability.table import Record, Trial, scratch, table

PARTS = ("kills", "disks", "damages", "faults", "soak", "ray", "sglang")
# "try again later"; see sysexits.h
_UNFINISHED = 75


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0 if every case passed, 1 if one failed, 75 if time ran out before the last one."""
    arguments = _parser().parse_args(argv)
    _import_everything()
    began = time.monotonic()
    record = Record(arguments.record)
    is_complete = True
    with scratch() as place:
        for trial in _trials(arguments, place):
            if record.has_passed(trial):
                continue
            if time.monotonic() - began > 60 * arguments.stop_after:
                is_complete = False
                break
            verdict = trial.judge()
            record.add(verdict)
            if verdict.faults:
                print(
                    f"{verdict.part}, {verdict.case}: {'; '.join(verdict.faults)}",
                    file=sys.stderr,
                    flush=True,
                )
    print(table(record.verdicts))
    print(f"\n{time.monotonic() - began:.0f} s")
    if not is_complete:
        print("cases are left: the same command goes on")
        return _UNFINISHED
    return int(any(verdict.faults for verdict in record.verdicts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.torture", description="Kill runs, fill disks, damage folders and break code."
    )
    parser.add_argument("--short", action="store_true", help="a few cases of each part, in under 3 minutes")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=PARTS[:4],
        help="default: %(default)s; soak takes --minutes",
    )
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="length of the soak (default %(default)g)"
    )
    parser.add_argument(
        "--record",
        type=Path,
        help="keep verdicts in this file; cases that passed are not tried again, and the table counts all of them",
    )
    parser.add_argument(
        "--stop-after",
        type=float,
        default=math.inf,
        help="begin no case after so many minutes; with --record the same command goes on later",
    )
    return parser


def _trials(arguments: argparse.Namespace, place: Path) -> Iterator[Trial]:
    """Yield the cases of the chosen parts; runs to compare with are played in ``place``."""
    from scripts.durability import clusters, damages, disks, faults, kills, soak
    from scripts.durability.toy import FORMS

    short = arguments.short

    def kill(folder: Path) -> Iterator[Trial]:
        if short:
            yield from kills.kill("shared", {"-9": 3, "TERM": 1, "STOP": 1}, folder)
            return
        for form in FORMS:
            yield from kills.kill(form, {"-9": 28, "TERM": 8, "STOP": 4}, _made(folder / form))

    parts: dict[str, Callable[[Path], Iterator[Trial]]] = {
        "kills": kill,
        "disks": lambda folder: disks.fill(folder, 4 if short else None),
        "damages": lambda folder: damages.damage(folder, 12 if short else None),
        "faults": lambda folder: faults.break_code(4 if short else None),
        "soak": lambda folder: soak.soak(arguments.minutes),
        "ray": lambda folder: clusters.kill("ray", folder),
        "sglang": lambda folder: clusters.kill("sglang", folder),
    }
    for part in arguments.parts:
        trials = list(parts[part](_made(place / part)))
        # whenever time runs out, cases of every kind have been tried
        random.Random(0).shuffle(trials)
        yield from trials


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _import_everything() -> None:
    """Import what runs need, so that a forked process has it already."""
    import matplotlib

    matplotlib.use("Agg")
    import drmas_pl.config.build
    import drmas_pl.config.compose
    import drmas_pl.config.resume
    import drmas_pl.tools.train
    import drmas_pl.trainer.trainer  # noqa: F401
    import scripts.durability.toy  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
