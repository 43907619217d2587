"""Checks of what callers and user code hand over: arguments by type, and what environments and teams return as plain values.

A message says what is wrong where, what was expected, what came and, where it helps, what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from drmas_pl.errors import ContractError


def check_type(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> None:
    """Check that an argument is of a type it may have; a bool is no number here.

    Args:
        name: Argument name.
        value: What was given.
        kinds: Types it may have.
        expected: What it must be, in words; may go on with what to do.

    Raises:
        TypeError: It is of another type.

    >>> check_type("max_iterations", "3", int, "a whole number")
    Traceback (most recent call last):
    TypeError: max_iterations must be a whole number, got '3' (str)
    """
    if not _is_of(value, kinds):
        raise TypeError(f"{name} must be {expected}, got {shown(value)}")


def check_count(name: str, value: Any, *, low: int = 0) -> None:
    """Check that an argument is a whole number of at least ``low``.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is too small.

    >>> check_count("retries", -1)
    Traceback (most recent call last):
    ValueError: retries must be at least 0, got -1
    """
    check_type(name, value, int, "a whole number")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def check_returned(what: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> None:
    """Check that user code returned what its contract says.

    Args:
        what: What it is, in words.
        value: What was returned.
        kinds: Types it may have.
        expected: What it must be, in words.

    Raises:
        ContractError: It is of another type.
    """
    if not _is_of(value, kinds):
        raise ContractError(f"{what} must be {expected}, got {shown(value)}")


def to_number(what: str, value: Any) -> float:
    """Return a number of any library as a float.

    Args:
        what: What it is, for the message.
        value: A number, or an array or tensor that holds one and has no dimensions.

    Raises:
        ContractError: It is no number, which text that looks like one is not either, or not finite.

    >>> import numpy as np
    >>> to_number("the reward", np.float32(0.5))
    0.5
    >>> to_number("the reward", "0.5")
    Traceback (most recent call last):
    drmas_pl.errors.ContractError: the reward must be a number, got '0.5' (str)
    """
    plain = _plain(value)
    if not isinstance(plain, Real):
        raise ContractError(f"{what} must be a number, got {shown(value)}")
    if not math.isfinite(plain):
        raise ContractError(f"{what} must be a finite number, got {plain}")
    return float(plain)


def to_flag(what: str, value: Any) -> bool:
    """Return a truth value of any library as a bool.

    Raises:
        ContractError: It is none.

    >>> import numpy as np
    >>> to_flag("terminated", np.True_)
    True
    """
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise ContractError(f"{what} must be True or False, got {shown(value)}")
    return plain


def to_metrics(what: str, value: Any) -> dict[str, float]:
    """Return named numbers of any library as floats by name.

    Raises:
        ContractError: It is no mapping, a name is no text, or a value is no finite number.

    >>> to_metrics("metrics", {"tries": 2, "note": "fine"})
    Traceback (most recent call last):
    drmas_pl.errors.ContractError: metrics['note'] must be a number, got 'fine' (str)
    """
    check_returned(what, value, Mapping, "a mapping from names to numbers")
    for name in value:
        check_returned(f"a name in {what}", name, str, "a text")
    return {name: to_number(f"{what}[{name!r}]", item) for name, item in value.items()}


def shown(value: Any) -> str:
    """Return a value and its type as short as a message needs them.

    >>> shown("3"), shown(None)
    ("'3' (str)", 'None')
    """
    if value is None or isinstance(value, type):
        return repr(value)
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def _is_of(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Tell whether a value is of one of the types, where a bool is no int."""
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    return isinstance(value, wanted) and not (isinstance(value, bool) and bool not in wanted)


def _plain(value: Any) -> Any:
    """Return the scalar inside a numpy or torch one."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
