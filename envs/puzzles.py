"""Puzzles drawn by seed, without repetition, into splits that can share none.

Place in the data flow: an environment's ``make_tasks`` passes its generator here; the resulting tasks are what a run trains and
evaluates on. Which split a puzzle belongs to is a property of the puzzle, not of its seed, so that no choice of seeds and sizes can put
one into two splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final, Literal, Protocol, TypeVar, get_args

from drmas_pl.errors import ConfigError
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Task

Split = Literal["train", "validation", "test"]
Puzzle = TypeVar("Puzzle")
Result = TypeVar("Result", covariant=True)
# Of ten puzzles one is for validation and one for testing.
_SHARES: Final = 10
_DRAWS_PER_PUZZLE: Final = 50


class Generator(Protocol[Result]):
    """Makes a puzzle whose key is admitted; asking early saves the work of one that is not wanted."""

    def __call__(self, random: Random, admit: Callable[[str], bool]) -> Result:
        """Draw from ``random`` alone."""
        ...


def split_of(key: str) -> Split:
    """Return the split that a puzzle with this key belongs to.

    >>> split_of("a") == split_of("a")
    True
    """
    place = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % _SHARES
    if place > 1:
        return "train"
    return "validation" if place else "test"


def draw_puzzles(
    name: str,
    generate: Generator[Puzzle],
    *,
    written: Callable[[Puzzle], str],
    split: Split,
    size: int,
    seed: int,
) -> Iterator[tuple[str, Puzzle]]:
    """Draw different puzzles of one split.

    Args:
        name: Name of the kind of puzzle, part of every seed and id.
        generate: Makes one puzzle.
        written: The puzzle as text; two with equal text are the same.
        split: Which puzzles to keep.
        size: Number of puzzles, at least 1.
        seed: Chooses another series of puzzles of the same split.

    Yields:
        Id and puzzle.

    Raises:
        ConfigError: There are too few different puzzles with these settings.
        ValueError: ``size`` or ``split`` is out of range.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 puzzle, got {size}")
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    seen: set[str] = set()
    for number in range(_DRAWS_PER_PUZZLE * size):
        random = Random(derive_seed(name, split, seed, number))
        puzzle = generate(random, lambda key: split_of(key) == split)
        if (text := written(puzzle)) in seen:
            continue
        seen.add(text)
        yield f"{name}/{split}/{seed}/{number}", puzzle
        if len(seen) == size:
            return
    raise ConfigError(
        f"{name}: found {len(seen)} different puzzles for {split}, expected {size}; "
        "ask for fewer, or for larger or less restricted ones"
    )


def numbered_tasks(
    game: str, split: Split, size: int, seed: int, draw: Callable[[Random], Mapping[str, Any]]
) -> tuple[Task, ...]:
    """Make tasks of a game that begins alike, or in one of a few ways, so that their names have to tell them apart.

    Args:
        game: Name of the game, part of every name and the data source.
        split: Part of every name.
        size: Number of tasks, at least 1.
        seed: Part of every name.
        draw: Makes a task's metadata.

    Raises:
        ValueError: ``size`` or ``split`` is out of range.
    """
    if size < 1 or split not in get_args(Split):
        raise ValueError(
            f"size must be at least 1 and split one of {', '.join(get_args(Split))}, got {size} and {split!r}"
        )
    names = [f"{game}/{split}/{seed}/{number}" for number in range(size)]
    return tuple(
        Task(name, f"Game {name}", data_source=game, metadata=draw(Random(derive_seed(name))))
        for name in names
    )
