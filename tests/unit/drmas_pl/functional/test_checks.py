"""Messages of the argument checks."""

from __future__ import annotations

import pytest
import torch

from drmas_pl.functional.checks import check_choice, check_ids, check_integers, check_range, check_rows


def test_rows_must_be_vectors_of_one_length() -> None:
    check_rows(score=torch.zeros(2), entry=None, group=torch.zeros(2))
    with pytest.raises(
        ValueError, match=r"score must have shape \(N,\), got \(2, 1\); pass one entry per row"
    ):
        check_rows(score=torch.zeros(2, 1))
    with pytest.raises(
        ValueError, match=r"group must have shape \(2,\) like score, got \(3,\); pass one entry per row"
    ):
        check_rows(score=torch.zeros(2), group=torch.zeros(3))


def test_ids_must_be_integers_from_zero() -> None:
    check_ids(agent=torch.tensor([0, 3]), entry=None, empty=torch.zeros(0, dtype=torch.int64))
    with pytest.raises(
        ValueError, match=r"agent must hold integer ids, got torch.float32; number labels with encode\(\)"
    ):
        check_integers(agent=torch.zeros(1))
    with pytest.raises(ValueError, match=r"agent must not be negative, got -2"):
        check_ids(agent=torch.tensor([0, -2]))


def test_choices_and_ranges() -> None:
    check_choice("mode", "a", ("a", "b"))
    check_range("gamma", 1.0, low=0.0, high=1.0)
    with pytest.raises(ValueError, match="mode must be one of 'a', 'b', got 'c'"):
        check_choice("mode", "c", ("a", "b"))
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got nan"):
        check_range("gamma", float("nan"), low=0, high=1)
