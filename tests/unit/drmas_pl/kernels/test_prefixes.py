"""Common beginnings: hand cases and a slow oracle."""

from __future__ import annotations

import random

import numpy as np
import pytest

from drmas_pl.kernels.prefixes import Prefixes, columns_of, shared_prefixes


def slow(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    count = 0
    for a, b in zip(left, right):
        if a != b:
            break
        count += 1
    return count


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_common_beginning_is_found(seed: int) -> None:
    generator = random.Random(seed)
    earlier = list(
        {tuple(generator.randrange(3) for _ in range(generator.randrange(1, 9))) for _ in range(40)}
    )
    prompts = [
        tuple(generator.randrange(3) for _ in range(generator.randrange(1, 9))) for _ in range(60)
    ] + earlier[:3]
    found = shared_prefixes(prompts, earlier)
    for prompt, source, length in zip(prompts, found.source.tolist(), found.length.tolist()):
        assert length == min(max(slow(prompt, other) for other in earlier), len(prompt) - 1)
        assert slow(prompt, earlier[source]) >= length


def test_nothing_earlier_means_nothing_shared() -> None:
    assert shared_prefixes([(1, 2)], []).length.tolist() == [0]


def test_one_token_is_always_left() -> None:
    found = shared_prefixes([(1, 2, 3), (1,)], [(1, 2, 3, 4)])
    assert found.length.tolist() == [2, 0]


def test_shared_tokens_are_listed_by_prompt_and_position() -> None:
    rows, positions = columns_of(Prefixes(np.array([4, 4, 4]), np.array([2, 0, 3])))
    assert rows.tolist() == [0, 0, 2, 2, 2]
    assert positions.tolist() == [0, 1, 0, 1, 2]
