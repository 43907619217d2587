"""Derive the shipped arithmetic tasks from reasoning-gym's ``chain_sum`` generator.

Place in the data flow: run once by a maintainer; its output, ``drmas_pl/embedded/math/*.jsonl``, is what ``env=math`` plays when no
other data is named. The three splits never share an expression, and neither does the warm-up of the tiny model
(:mod:`scripts.embedded.math_warmup`), which draws more problems from the training seeds through :func:`training_problems`.

reasoning-gym seeds item ``i`` of a data set with ``seed + i``, so two data sets are disjoint only if their *ranges* of seeds are: each
split owns a range of :data:`SEED_RANGE` seeds, and duplicates between ranges are removed as well.

Usage: ``python -m scripts.embedded.math_data [--out FOLDER]``
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal

Split = Literal["train", "validation", "test"]

OUT = Path(__file__).resolve().parents[2] / "drmas_pl" / "embedded" / "math"
SEED_RANGE = 10_000_000
SPLIT_ORDER: tuple[Split, ...] = ("test", "validation", "train")
SPLIT_SIZE: dict[Split, int] = {"train": 800, "validation": 100, "test": 100}
SPLIT_SEED: dict[Split, int] = {"train": 0, "validation": SEED_RANGE, "test": 2 * SEED_RANGE}
LEVELS: dict[str, tuple[int, int]] = {
    "chain_sum/3x1": (3, 1),
    "chain_sum/4x1": (4, 1),
    "chain_sum/2x2": (2, 2),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One arithmetic problem.

    Attributes:
        source: Key of :data:`LEVELS`, used as the task's data source.
        seed: Seed of reasoning-gym's generator that yields exactly this problem.
        question: Question as reasoning-gym words it.
        expression: The bare expression, such as ``"4 - 1 - 7"``.
        answer: The exact result in decimal digits.
    """

    source: str
    seed: int
    question: str
    expression: str
    answer: str


def problems(source: str, seed: int) -> Iterator[Problem]:
    """Yield the endless stream of problems of one level, starting at a seed.

    Args:
        source: Key of :data:`LEVELS`.
        seed: Seed of the first problem; the n-th problem has seed ``seed + n``.

    Yields:
        Problems; an expression may come up more than once.
    """
    import reasoning_gym

    terms, digits = LEVELS[source]
    shape = {"min_terms": terms, "max_terms": terms, "min_digits": digits, "max_digits": digits}
    stream = reasoning_gym.create_dataset("chain_sum", seed=seed, size=SEED_RANGE, **shape)
    for index in range(SEED_RANGE):
        item = stream[index]
        yield Problem(source, seed + index, item["question"], item["metadata"]["expression"], item["answer"])


def split_problems() -> dict[Split, list[Problem]]:
    """Draw all splits so that no expression occurs twice, within a split or between two.

    Held-out splits are filled first, so that enlarging the training split never changes them.

    Returns:
        Problems per split, the levels interleaved.
    """
    seen: set[str] = set()
    splits: dict[Split, list[Problem]] = {}
    for split in SPLIT_ORDER:
        per_level = [_distinct(source, SPLIT_SEED[split], SPLIT_SIZE[split], seen) for source in LEVELS]
        splits[split] = [problem for group in zip(*per_level, strict=True) for problem in group]
    return splits


def held_out_expressions() -> frozenset[str]:
    """Return the expressions of the validation and test splits."""
    return frozenset(
        problem.expression
        for split, drawn in split_problems().items()
        if split != "train"
        for problem in drawn
    )


def training_problems(source: str, held_out: frozenset[str]) -> Iterator[Problem]:
    """Yield problems from the training seeds whose expressions are in no held-out split.

    Args:
        source: Key of :data:`LEVELS`.
        held_out: Expressions never to yield.

    Yields:
        Problems, with repetitions.
    """
    return (
        problem for problem in problems(source, SPLIT_SEED["train"]) if problem.expression not in held_out
    )


def to_record(problem: Problem, split: Split) -> dict[str, object]:
    """Write a problem in the field's schema.

    >>> row = to_record(Problem("chain_sum/3x1", 5, "… 4 - 1 - 7 =", "4 - 1 - 7", "-4"), "train")
    >>> row["reward_model"], row["extra_info"]
    ({'ground_truth': '-4'}, {'split': 'train', 'seed': 5})
    """
    return {
        "data_source": problem.source,
        "prompt": [{"role": "user", "content": problem.question}],
        "reward_model": {"ground_truth": problem.answer},
        "extra_info": {"split": split, "seed": problem.seed},
    }


def main() -> None:
    """Write the three splits and the generator's licence into the output folder."""
    parser = argparse.ArgumentParser(description="Derive the shipped arithmetic tasks from reasoning-gym.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for split, drawn in split_problems().items():
        lines = [json.dumps(to_record(problem, split), separators=(",", ":")) for problem in drawn]
        path = out / f"{split}.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path}: {len(lines)} problems, {path.stat().st_size / 1000:.0f} kB")
    _write_licence(out)


def _distinct(source: str, seed: int, count: int, seen: set[str]) -> list[Problem]:
    """Take the first problems whose expressions are new, and remember them."""
    taken: list[Problem] = []
    for problem in problems(source, seed):
        if problem.expression in seen:
            continue
        seen.add(problem.expression)
        taken.append(problem)
        if len(taken) == count:
            break
    return taken


def _write_licence(out: Path) -> None:
    """Copy the licence text of the installed generator beside the derived data."""
    source = distribution("reasoning-gym")
    text = source.read_text("licenses/LICENSE")
    if text is None:
        raise FileNotFoundError(
            "reasoning-gym's LICENSE was expected in its metadata folder; reinstall reasoning-gym."
        )
    (out / "LICENSE.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
