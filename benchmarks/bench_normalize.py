"""Time the group normaliser against slow code that does the same row by row.

    python -m benchmarks.bench_normalize --rows 1000000 --groups 200000 --out normalize.json

Both run in this process on one thread, and their results are compared before the table is printed. Times are CPU seconds, best
of the repeats for the library and of a single pass for the slow codes, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from drmas_pl.functional import group_ids, group_normalize

EPS = 1e-6
GOAL_SECONDS = 0.5
GOAL_SPEEDUP = 50.0


def make_rows(rows: int, groups: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw scores, task ids and agent ids, so that (task, agent) makes about ``groups`` groups."""
    generator = torch.Generator().manual_seed(seed)
    agents = 4
    task = torch.randint(0, max(groups // agents, 1), (rows,), generator=generator)
    agent = torch.randint(0, agents, (rows,), generator=generator)
    return torch.rand(rows, generator=generator), task, agent


def normalize_rows(score: Tensor, task: Tensor, agent: Tensor) -> Tensor:
    """The library: group ids from two columns, then the normaliser."""
    group = group_ids(task, agent)
    return group_normalize(score, group, group, eps=EPS)


def loop_over_tensors(score: Tensor, task: Tensor, agent: Tensor) -> Tensor:
    """A dict from key to scalar tensors and a loop over rows, as the common implementations are written."""
    members: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    keys = list(zip(task.tolist(), agent.tolist()))
    for row, key in enumerate(keys):
        members[key].append(score[row])
    moments = {}
    for key, values in members.items():
        stacked = torch.stack(values)
        moments[key] = (stacked.mean(), stacked.std() if len(values) > 1 else torch.tensor(float("inf")))
    result = torch.empty_like(score)
    for row, key in enumerate(keys):
        mean, std = moments[key]
        result[row] = (score[row] - mean) / (std + EPS)
    return result


def loop_over_floats(score: Tensor, task: Tensor, agent: Tensor) -> Tensor:
    """The same loop on Python floats, the fastest that a dict can do."""
    members: dict[tuple[int, int], list[float]] = defaultdict(list)
    keys = list(zip(task.tolist(), agent.tolist()))
    for key, value in zip(keys, score.tolist()):
        members[key].append(value)
    moments = {}
    for key, values in members.items():
        mean = sum(values) / len(values)
        variance = (
            sum((value - mean) ** 2 for value in values) / (len(values) - 1)
            if len(values) > 1
            else float("inf")
        )
        moments[key] = (mean, variance**0.5 + EPS)
    return torch.tensor(
        [(value - moments[key][0]) / moments[key][1] for key, value in zip(keys, score.tolist())]
    )


def clock(run: Callable[[], Tensor], *, repeats: int) -> tuple[float, Tensor]:
    """Return the best CPU time of several runs, and the result."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
    return best, result


def measure(rows: int, groups: int, *, repeats: int, seed: int) -> dict[str, float]:
    """Time all implementations on the same rows and check that they agree.

    Args:
        rows: Rows to draw.
        groups: Groups to aim at.
        repeats: Timed runs of the library; the best counts.
        seed: Seed of the rows.

    Returns:
        Sizes, CPU seconds, speed-ups and the largest difference between results.
    """
    data = make_rows(rows, groups, seed=seed)
    fast, result = clock(lambda: normalize_rows(*data), repeats=repeats)
    tensors, slow = clock(lambda: loop_over_tensors(*data), repeats=1)
    floats, plain = clock(lambda: loop_over_floats(*data), repeats=1)
    return {
        "rows": rows,
        "groups": int(group_ids(*data[1:]).max()) + 1,
        "library_seconds": fast,
        "tensor_loop_seconds": tensors,
        "float_loop_seconds": floats,
        "tensor_loop_speedup": tensors / fast,
        "float_loop_speedup": floats / fast,
        "largest_difference": max((result - slow).abs().max().item(), (result - plain).abs().max().item()),
    }


def render(record: dict[str, float]) -> str:
    """Format one measurement as a short table."""
    lines = [
        f"{record['rows']:,} rows in {record['groups']:,} groups, one thread",
        f"{'':<28}{'CPU s':>10}{'speed-up':>10}",
    ]
    lines.append(f"{'library':<28}{record['library_seconds']:>10.3f}{1:>10.0f}")
    for name in ("float_loop", "tensor_loop"):
        label = "dict and loop, " + ("Python floats" if name == "float_loop" else "tensors")
        lines.append(f"{label:<28}{record[f'{name}_seconds']:>10.3f}{record[f'{name}_speedup']:>10.0f}")
    lines.append(f"largest difference {record['largest_difference']:.1e}")
    met = record["library_seconds"] < GOAL_SECONDS and record["tensor_loop_speedup"] >= GOAL_SPEEDUP
    lines.append(
        f"goal (under {GOAL_SECONDS} s, {GOAL_SPEEDUP:.0f} times the tensor loop): {'met' if met else 'missed'}"
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Time the group normaliser against a dict and a loop.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to normalise")
    parser.add_argument("--groups", type=int, default=200_000, help="groups to aim at")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of the library, the best counts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the rows")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    record = measure(options.rows, options.groups, repeats=options.repeats, seed=options.seed)
    print(render(record))
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
