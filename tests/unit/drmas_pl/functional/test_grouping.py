"""Group ids, group sizes and alignment."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drmas_pl.functional import align_rows, check_group_sizes, encode, group_ids, segment_count


def test_encode_numbers_any_hashable_in_order_of_appearance() -> None:
    assert encode([("q", 1), "x", ("q", 1), None]).tolist() == [0, 1, 0, 2]
    assert encode([]).shape == (0,)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2)), max_size=30)
)
def test_group_ids_are_dense_and_equal_exactly_for_equal_keys(rows: list[tuple[int, int, int]]) -> None:
    columns = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), 3).unbind(1)
    ids = group_ids(*columns).tolist()
    assert sorted(set(ids)) == list(range(len(set(rows))))
    order = {key: number for number, key in enumerate(sorted(set(rows)))}
    assert ids == [order[key] for key in rows]


def test_group_ids_accept_flags_and_small_integer_types() -> None:
    assert group_ids(torch.tensor([True, False]), torch.tensor([1, 1], dtype=torch.int8)).tolist() == [1, 0]


def test_group_ids_reject_nothing_floats_and_lengths() -> None:
    with pytest.raises(ValueError, match="at least one column, got none"):
        group_ids()
    with pytest.raises(ValueError, match=r"column 1 must hold integer ids, got torch.float32"):
        group_ids(torch.tensor([1]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"column 1 must have shape \(1,\)"):
        group_ids(torch.tensor([1]), torch.tensor([1, 2]))


def test_group_sizes_are_checked() -> None:
    check_group_sizes(torch.tensor([0, 1, 0, 1]), 2)
    with pytest.raises(
        ValueError,
        match=r"have 2 rows as configured, got 3 in group 1 \(1 of 2 groups differ\); drop incomplete groups",
    ):
        check_group_sizes(torch.tensor([0, 1, 0, 1, 1]), 2)


@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_alignment_fills_every_group_evenly(size: int) -> None:
    group = torch.tensor([9, 2, 2, 9, 9, 5])
    rows = align_rows(group, size, generator=torch.Generator().manual_seed(1))
    assert segment_count(group_ids(group[rows])).tolist() == [size] * 3
    for key in (9, 2, 5):
        members = (group == key).nonzero().squeeze(-1)
        used = torch.bincount(rows[group[rows] == key], minlength=6)[members]
        assert used.max() - used.min() <= 1


def test_alignment_is_seeded_and_varies_with_the_seed() -> None:
    group = torch.zeros(20, dtype=torch.int64)
    picks = [
        align_rows(group, 5, generator=torch.Generator().manual_seed(seed)).tolist() for seed in (0, 0, 1)
    ]
    assert picks[0] == picks[1] != picks[2]
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        align_rows(group, 0, generator=torch.Generator())
