"""Kill runs, fill disks, damage folders and break code, and count what came of it: ``python -m scripts.torture [--short]``.

Nothing may be lost, executed, left behind or told as a traceback. A run that was killed must become, number for number, the one that was
not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

# models are too small for threads, and a process that forks must have none
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from scripts.durability.table import Verdict, table

PARTS = ("kills", "disks", "damages", "faults", "soak", "ray", "sglang")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0 if every case passed."""
    arguments = _parser().parse_args(argv)
    _import_everything()
    began = time.monotonic()
    verdicts: list[Verdict] = []
    for verdict in _verdicts(arguments):
        verdicts.append(verdict)
        if verdict.faults:
            print(f"{verdict.part}, {verdict.case}: {'; '.join(verdict.faults)}", file=sys.stderr, flush=True)
    print(f"{len(verdicts)} cases", file=sys.stderr)
    print(table(verdicts))
    print(f"\n{time.monotonic() - began:.0f} s")
    return int(any(verdict.faults for verdict in verdicts))


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
    return parser


def _verdicts(arguments: argparse.Namespace) -> Iterator[Verdict]:
    """Yield the verdicts of the chosen parts."""
    from scripts.durability import clusters, damages, disks, faults, kills, soak
    from scripts.durability.toy import FORMS

    short = arguments.short

    def kill() -> Iterator[Verdict]:
        if short:
            yield from kills.kill("shared", {"-9": 3, "TERM": 1, "STOP": 1})
            return
        for form in FORMS:
            yield from kills.kill(form, {"-9": 28, "TERM": 8, "STOP": 4})

    parts: dict[str, Callable[[], Iterator[Verdict]]] = {
        "kills": kill,
        "disks": lambda: disks.fill(4 if short else None),
        "damages": lambda: damages.damage(12 if short else None),
        "faults": lambda: faults.break_code(4 if short else None),
        "soak": lambda: soak.soak(arguments.minutes),
        "ray": lambda: clusters.kill("ray"),
        "sglang": lambda: clusters.kill("sglang"),
    }
    for part in arguments.parts:
        yield from parts[part]()


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
