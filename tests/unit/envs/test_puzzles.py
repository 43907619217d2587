"""Puzzles are drawn without repetition, into splits that share none."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from drmas_pl.envs.puzzles import Split, draw_puzzles, split_of
from drmas_pl.errors import ConfigError

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def number(random: Random, admit: Callable[[str], bool]) -> int:
    drawn = random.randrange(2000)
    while not admit(str(drawn)):
        drawn = random.randrange(2000)
    return drawn


def draw(split: Any = "train", size: int = 20, seed: int = 0) -> list[tuple[str, int]]:
    return list(draw_puzzles("number", number, written=str, split=split, size=size, seed=seed))


def test_splits_share_nothing_whatever_seeds_and_sizes() -> None:
    found = {split: {puzzle for seed in range(5) for _, puzzle in draw(split, 60, seed)} for split in SPLITS}
    assert not found["train"] & found["validation"]
    assert not found["train"] & found["test"] and not found["validation"] & found["test"]
    assert all(split_of(str(puzzle)) == split for split in SPLITS for puzzle in found[split])


def test_nothing_comes_twice_and_ids_are_different() -> None:
    found = draw(size=500)
    assert len({puzzle for _, puzzle in found}) == len({name for name, _ in found}) == 500


def test_the_seed_decides() -> None:
    assert draw() == draw() != draw(seed=1)


def test_most_puzzles_are_for_training() -> None:
    shares = [[split_of(str(key)) for key in range(5000)].count(split) / 5000 for split in SPLITS]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be at least 1"),
        ({"split": "dev"}, ValueError, "split must be one of train, validation, test"),
        ({"size": 300, "split": "test"}, ConfigError, "different puzzles for test, expected 300"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        draw(**settings)
