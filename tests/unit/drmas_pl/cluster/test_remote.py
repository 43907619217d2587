"""Prompts are divided among ranks in order."""

from __future__ import annotations

import pytest

from drmas_pl.cluster.remote import split_evenly


@pytest.mark.parametrize(("count", "parts"), [(0, 2), (1, 3), (7, 3), (8, 4), (5, 1)])
def test_parts_are_consecutive_and_nearly_equal(count: int, parts: int) -> None:
    found = split_evenly(range(count), parts)
    assert len(found) == parts and [item for part in found for item in part] == list(range(count))
    assert max(map(len, found)) - min(map(len, found)) <= 1
