"""Derived seeds: stable, separate and in range."""

from __future__ import annotations

import subprocess
import sys

from drmas_pl.seeding import derive_seed


def test_the_value_never_changes() -> None:
    assert derive_seed(0, "train", 3, "q17", 0, "solver", 1) == derive_seed(
        0, "train", 3, "q17", 0, "solver", 1
    )
    code = "from drmas_pl.seeding import derive_seed; print(derive_seed(0, 'train', 3, 'q17', 0))"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    assert int(other.stdout) == derive_seed(0, "train", 3, "q17", 0)


def test_every_part_matters_and_kinds_are_kept_apart() -> None:
    base: tuple[int | str, ...] = (7, "train", 3, "q17", 0, "solver", 1)
    changes: tuple[int | str, ...] = (8, "eval", 4, "q18", 1, "verifier", 2)
    changed = [derive_seed(*base[:at], part, *base[at + 1 :]) for at, part in enumerate(changes)]
    assert len({derive_seed(*base), *changed}) == len(base) + 1
    assert derive_seed(1, "23") != derive_seed(12, "3")
    assert derive_seed(1) != derive_seed("1")
    assert derive_seed("a", "b") != derive_seed("ab")


def test_seeds_fit_a_signed_64_bit_number_and_spread() -> None:
    seeds = [derive_seed(0, sample) for sample in range(2000)]
    assert len(set(seeds)) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert 800 < sum(seed >= 2**62 for seed in seeds) < 1200
