"""Train the embedded tasks with several bounds on staleness, and lay what came of it in a table.

    python -m scripts.staleness --out FOLDER

Runs whose folder is complete are left alone, so that it can be called again, also with a part of the runs (``--task``, ``--bound``,
``--seed``). Every run is ``tools/train.py`` with the README's words. The table has means over seeds, of validations in percent; over an
iteration's agents and over iterations, of how far the policy had moved from the one that sampled (``policy_shift``, nats per token), of the
share of tokens whose gradient the clip cut, of their age in updates, and of turns in the middle of which new weights came.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
WORDS: Final[Mapping[str, Sequence[str]]] = {
    "search": ("+env=search", "+agents=hierarchy"),
    "math": ("+env=math", "+agents=loop"),
}
COLUMNS: Final = ("policy_shift", "mismatch", "clipped", "staleness", "staleness_max", "mixed_versions")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description="Train with several bounds on staleness.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--task", choices=list(WORDS), nargs="*", default=list(WORDS))
    parser.add_argument("--bound", type=int, nargs="*", default=[0, 1, 2], help="values of max_staleness")
    parser.add_argument("--seed", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--word", nargs="*", default=[], help="further words for tools/train.py")
    parser.add_argument(
        "--table", action="store_true", help="only print the table of the runs that are there"
    )
    options = parser.parse_args(arguments)
    runs = [(task, bound, seed) for seed in options.seed for task in options.task for bound in options.bound]
    if not options.table:
        for task, bound, seed in runs:
            train(options.out / f"{task}-{bound}-{seed}", task, bound, seed, options.word)
    print(table(options.out, options.task, options.bound, options.seed))


def train(folder: Path, task: str, bound: int, seed: int, words: Iterable[str] = ()) -> None:
    """Train once, unless it was done before; a run that was stopped goes on."""
    if (folder / "summary.json").exists():
        return
    command = [sys.executable, str(ROOT / "tools/train.py")]
    if (folder / "checkpoints/last").exists():
        command.append(f"resume={folder}")
    else:
        command += [*WORDS[task], f"seed={seed}", f"output_dir={folder}", f"rollout.max_staleness={bound}"]
        command += [*(["engine.copy=true"] if bound else []), *words]
    subprocess.run(command, check=True, cwd=ROOT)


def table(out: Path, tasks: Sequence[str], bounds: Sequence[int], seeds: Sequence[int]) -> str:
    """Return a Markdown table of the runs that are complete."""
    lines = [
        "| task | max_staleness | seeds | sampled success, before → after | greedy, after | policy shift | clipped | age | oldest | "
        "new weights within a turn |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task in tasks:
        for bound in bounds:
            found = [
                measured(out / f"{task}-{bound}-{seed}")
                for seed in seeds
                if (out / f"{task}-{bound}-{seed}/summary.json").exists()
            ]
            if found:
                lines.append(_line(task, bound, found))
    return "\n".join(lines)


def measured(folder: Path) -> dict[str, float]:
    """Return a run's validations, and what is measured of its samples, averaged over agents and iterations."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    sampled = [record["validation/success"] for record in records if "validation/success" in record]
    greedy = [
        record["validation-greedy/success"] for record in records if "validation-greedy/success" in record
    ]
    found = {"before": sampled[0], "after": sampled[-1]}
    if greedy:
        found["greedy"] = greedy[-1]
    for name in COLUMNS:
        values = [_number(record, name) for record in records]
        kept = [value for value in values if value is not None]
        if kept:
            found[name] = max(kept) if name.endswith("max") else statistics.fmean(kept)
    return found


def _number(record: Mapping[str, Any], name: str) -> float | None:
    """Return the mean of a metric over the agents of an iteration."""
    values = [
        value
        for key, value in record.items()
        if key.startswith("train/") and key.endswith(f"/{name}") and key.count("/") == 2
    ]
    return statistics.fmean(values) if values else None


def _line(task: str, bound: int, found: Sequence[Mapping[str, float]]) -> str:
    def mean(name: str) -> float:
        return statistics.fmean(run.get(name, 0.0) for run in found)

    after = ", ".join(f"{100 * run['after']:.1f}" for run in found)
    # with equal weights the difference is rounding alone, which is logged by another name
    shift = mean("policy_shift") if bound else mean("mismatch")
    return (
        f"| {task} | {bound} | {len(found)} | {100 * mean('before'):.1f} → {100 * mean('after'):.1f} ({after}) | "
        f"{100 * mean('greedy'):.1f} | {shift:.2g} | {100 * mean('clipped'):.2f} % | {mean('staleness'):.2f} | "
        f"{mean('staleness_max'):.0f} | {100 * mean('mixed_versions'):.1f} % |"
    )


if __name__ == "__main__":
    main()
