"""Scope statistics, equality tolerance and row selection."""

from __future__ import annotations

import torch

from drmas_pl.functional.scopes import nearly_equal, pick, scope_statistics, spread, usable_rows

NAN, INF = float("nan"), float("inf")


def test_rows_of_one_trajectory_count_once() -> None:
    score, group = torch.tensor([1.0, 0.0, 0.2, 7.0]), torch.tensor([4, 4, 4, -1])
    scope = scope_statistics(score, group, entry=torch.tensor([0, 0, 1, 0]))
    torch.testing.assert_close(
        scope.value, torch.tensor([0.5, 0.5, 0.2, 7.0], dtype=torch.float64), atol=1e-7, rtol=0
    )
    torch.testing.assert_close(
        scope.mean, torch.tensor([0.35, 0.35, 0.35, 7.0], dtype=torch.float64), atol=1e-7, rtol=0
    )
    assert scope.count.tolist() == [2, 2, 2, 1]
    assert scope.alone.tolist() == [False, False, False, True]


def test_equality_tolerates_rounding_but_not_differences() -> None:
    low = torch.tensor([0.9, 1.0 - 0.1, 0.0, 1e6, 0.99, -1.0], dtype=torch.float32)
    high = torch.tensor([0.9, 0.9, 2.2e-8, 1e6 + 0.5, 1.0, 1.0], dtype=torch.float32)
    assert nearly_equal(low, high).tolist() == [True, True, True, False, False, False]


def test_unusable_rows_are_those_not_finite_or_not_valid() -> None:
    score, valid = torch.tensor([1.0, NAN, INF, -INF, 2.0]), torch.tensor([True, True, True, True, False])
    assert usable_rows(score).tolist() == [0, 4]
    assert usable_rows(score, valid).tolist() == [0]


def test_columns_are_picked_and_spread_back() -> None:
    column = torch.tensor([5.0, 6.0, 7.0])
    rows = torch.tensor([0, 2])
    assert pick(column, rows).tolist() == [5.0, 7.0]
    assert pick(column, torch.arange(3)) is column
    assert spread(pick(column, rows), rows, 3).tolist() == [5.0, 0.0, 7.0]
