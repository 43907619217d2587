"""Checks of arguments and of what user code returns: what passes, and the sentence for what does not."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from drmas_pl.errors import ContractError
from drmas_pl.utils.validation import check_count, check_type, to_flag, to_metrics, to_number


@pytest.mark.parametrize(
    "value", [1, 1.0, True, np.float16(1), np.array(1), torch.tensor(1.0), Fraction(1)], ids=repr
)
def test_numbers_of_any_library_are_numbers(value: Any) -> None:
    found = to_number("the reward", value)
    assert (found, type(found)) == (1.0, float)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("1", "must be a number, got '1' (str)"),
        (None, "must be a number, got None"),
        ([1.0], "must be a number, got [1.0] (list)"),
        (np.array([1.0]), "must be a number, got array([1.]) (ndarray)"),
        (1j, "must be a number, got 1j (complex)"),
        (float("nan"), "must be a finite number, got nan"),
        (np.float64("-inf"), "must be a finite number, got -inf"),
    ],
    ids=repr,
)
def test_what_is_no_number_is_named(value: Any, got: str) -> None:
    with pytest.raises(ContractError) as caught:
        to_number("the reward", value)
    assert str(caught.value) == f"the reward {got}"


@pytest.mark.parametrize("value", [False, np.bool_(False), torch.tensor(False)], ids=repr)
def test_flags_of_any_library_are_flags(value: Any) -> None:
    assert to_flag("terminated", value) is False


@pytest.mark.parametrize("value", [0, 1.0, None, "no", np.int64(1)], ids=repr)
def test_what_is_no_flag_is_refused(value: Any) -> None:
    with pytest.raises(ContractError, match=r"^terminated must be True or False, got "):
        to_flag("terminated", value)


def test_metrics_have_names_and_numbers() -> None:
    assert to_metrics("metrics", {"a": np.int32(3), "b": False}) == {"a": 3.0, "b": 0.0}
    with pytest.raises(ContractError, match=r"^metrics must be a mapping from names to numbers, got None$"):
        to_metrics("metrics", None)
    with pytest.raises(ContractError, match=r"^a name in metrics must be a text, got 3 \(int\)$"):
        to_metrics("metrics", {3: 1.0})


def test_arguments_are_checked_by_type_and_a_bool_is_no_number() -> None:
    check_type("seed", 3, int, "a whole number")
    check_type("flag", True, bool, "true or false")
    check_count("samples", 1, low=1)
    with pytest.raises(TypeError, match=r"^seed must be a whole number, got True \(bool\)$"):
        check_type("seed", True, int, "a whole number")
    with pytest.raises(TypeError, match=r"^samples must be a whole number, got 1.5 \(float\)$"):
        check_count("samples", 1.5, low=1)
    with pytest.raises(ValueError, match=r"^samples must be at least 1, got 0$"):
        check_count("samples", 0, low=1)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(TypeError) as caught:
        check_type("seed", "x" * 1000, int, "a whole number")
    assert len(str(caught.value)) < 150 and str(caught.value).endswith("... (str)")
