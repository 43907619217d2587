"""Stored beginnings: hand cases and a slow oracle."""

from __future__ import annotations

import random

import numpy as np
import pytest

from drmas_pl.kernels.prefixes import PrefixIndex, Prompt


def slow(left: Prompt, right: Prompt) -> int:
    count = 0
    for a, b in zip(left, right):
        if a != b:
            break
        count += 1
    return count


def stored(*sequences: Prompt) -> PrefixIndex:
    index = PrefixIndex()
    for number, tokens in enumerate(sequences):
        index.add(tokens, np.array([number]), np.array([len(tokens)]))
    return index


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_common_beginning_is_found(seed: int) -> None:
    generator = random.Random(seed)
    earlier = list(
        {tuple(generator.randrange(3) for _ in range(generator.randrange(1, 9))) for _ in range(40)}
    )
    prompts = [
        tuple(generator.randrange(3) for _ in range(generator.randrange(1, 9))) for _ in range(60)
    ] + earlier[:3]
    index = stored(*earlier)
    for prompt in prompts:
        blocks, fill, length = index.longest(prompt)
        assert length == min(max(slow(prompt, other) for other in earlier), len(prompt) - 1)
        if length:
            assert slow(prompt, earlier[blocks[0]]) >= length and fill[0] == len(earlier[blocks[0]])


def test_nothing_stored_means_nothing_shared() -> None:
    assert PrefixIndex().longest((1, 2))[2] == 0


def test_one_token_is_always_left() -> None:
    index = stored((1, 2, 3, 4))
    assert [index.longest(prompt)[2] for prompt in ((1, 2, 3), (1,))] == [2, 0]


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    index = stored((1, 2), (3, 4), (5, 6))
    index.longest((1, 2, 9))
    assert [index.remove_oldest()[0] for _ in range(3)] == [1, 2, 0]
    assert len(index) == 0


def test_removed_sequences_are_not_found_and_others_are() -> None:
    index = stored((1, 2), (1, 2, 3))
    assert index.remove((1, 2, 3)).tolist() == [1] and index.remove((7,)).tolist() == []
    assert (1, 2) in index and (1, 2, 3) not in index
    assert index.longest((1, 2, 3, 4))[2] == 2
    index.renumber(np.array([8, 9]))
    assert index.longest((1, 2, 3))[0].tolist() == [8]
    index.clear()
    assert len(index) == 0 and index.longest((1, 2, 3))[2] == 0
