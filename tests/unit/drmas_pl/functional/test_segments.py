"""Segment reductions against loops."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drmas_pl.functional import (
    segment_count,
    segment_max,
    segment_mean,
    segment_min,
    segment_sum,
    segment_var,
)

ROWS = st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100, width=32)), min_size=1, max_size=30)


@given(ROWS)
def test_reductions_match_a_loop(rows: list[tuple[int, float]]) -> None:
    group, value = torch.tensor([key for key, _ in rows]), torch.tensor([number for _, number in rows])
    for key in range(5):
        members = [number for other, number in rows if other == key]
        got = {
            "count": segment_count(group, num_groups=5)[key].item(),
            "sum": segment_sum(value, group, num_groups=5)[key].item(),
            "mean": segment_mean(value, group, num_groups=5)[key].item(),
            "sample": segment_var(value, group, num_groups=5)[key].item(),
            "population": segment_var(value, group, num_groups=5, ddof=0)[key].item(),
            "min": segment_min(value, group, num_groups=5)[key].item(),
            "max": segment_max(value, group, num_groups=5)[key].item(),
        }
        expected = {
            "count": len(members),
            "sum": math.fsum(members),
            "mean": math.fsum(members) / max(len(members), 1),
            "sample": statistics.variance(members) if len(members) > 1 else 0.0,
            "population": statistics.pvariance(members) if members else 0.0,
            "min": min(members, default=math.inf),
            "max": max(members, default=-math.inf),
        }
        assert got == pytest.approx(expected, abs=1e-9, rel=1e-9)


def test_the_number_of_groups_defaults_to_the_largest_id() -> None:
    group = torch.tensor([0, 3])
    assert segment_count(group).tolist() == [1, 0, 0, 1]
    assert segment_count(group, num_groups=6).shape == (6,)
    assert segment_sum(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_sums_keep_digits_that_float32_would_lose() -> None:
    value = torch.full((10_000,), 0.1)
    assert segment_mean(value, torch.zeros(10_000, dtype=torch.int64)).item() == value[0].double().item()


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match=r"group must have shape \(2,\) like value"):
        segment_sum(torch.zeros(2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"group must have shape \(2,\) like value"):
        segment_max(torch.zeros(2), torch.zeros(3, dtype=torch.int64))
