"""Buckets of prompt lengths."""

from __future__ import annotations

import pytest

from drmas_pl.engines.decoding import length_buckets


@pytest.mark.parametrize(
    ("lengths", "buckets"),
    [
        ([7], [(0, 1)]),
        ([5, 5, 5], [(0, 3)]),
        ([1, 200], [(0, 1), (1, 2)]),
        ([10] * 50 + [13] * 50, [(0, 8), (8, 100)]),
    ],
)
def test_buckets_trade_padding_for_passes(lengths: list[int], buckets: list[tuple[int, int]]) -> None:
    assert length_buckets(lengths, 128) == buckets


def test_buckets_cover_everything_once_and_bound_the_padding() -> None:
    lengths = sorted((37 * i) % 113 + 3 for i in range(200))
    buckets = length_buckets(lengths, 128)
    assert [at for first, last in buckets for at in range(first, last)] == list(range(200))
    assert all(
        sum(lengths[last - 1] - length for length in lengths[first:last]) <= 128 for first, last in buckets
    )


def test_cheaper_runs_are_shorter() -> None:
    assert length_buckets([1, 2, 3], overhead=0) == [(0, 1), (1, 2), (2, 3)]
    assert length_buckets([1, 2, 3], overhead=1000) == [(0, 3)]
