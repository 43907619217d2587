"""Argument checks shared by the pure functions: every message says what was expected, what came and what to do."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor


def check_rows(**columns: Tensor | None) -> None:
    """Check that all given columns are one-dimensional and equally long.

    Args:
        columns: Tensors by argument name; ``None`` is skipped.

    Raises:
        ValueError: A column is not (N,), or two differ in length.

    Example:
        >>> import torch
        >>> check_rows(score=torch.zeros(3), group=torch.zeros(2))
        Traceback (most recent call last):
        ValueError: group must have shape (3,) like score, got (2,); pass one entry per row
    """
    given = [(name, column) for name, column in columns.items() if column is not None]
    first, reference = given[0]
    if reference.dim() != 1:
        raise ValueError(
            f"{first} must have shape (N,), got {tuple(reference.shape)}; pass one entry per row"
        )
    for name, column in given[1:]:
        if column.shape != reference.shape:
            expected = f"{tuple(reference.shape)} like {first}"
            raise ValueError(
                f"{name} must have shape {expected}, got {tuple(column.shape)}; pass one entry per row"
            )


def check_integers(**columns: Tensor | None) -> None:
    """Check that all given columns hold integers.

    Args:
        columns: Tensors by argument name; ``None`` is skipped.

    Raises:
        ValueError: A column is not integer.

    Example:
        >>> import torch
        >>> check_integers(group=torch.tensor([0.5]))
        Traceback (most recent call last):
        ValueError: group must hold integer ids, got torch.float32; number labels with encode()
    """
    for name, column in columns.items():
        if column is not None and (column.is_floating_point() or column.is_complex()):
            raise ValueError(f"{name} must hold integer ids, got {column.dtype}; number labels with encode()")


def check_ids(**columns: Tensor | None) -> None:
    """Check that all given columns hold integers from 0 on, fit to index a table.

    Args:
        columns: Tensors by argument name; ``None`` is skipped.

    Raises:
        ValueError: A column is not integer, or holds a negative id.

    Example:
        >>> import torch
        >>> check_ids(agent=torch.tensor([0, -1]))
        Traceback (most recent call last):
        ValueError: agent must not be negative, got -1; number labels with encode()
    """
    check_integers(**columns)
    for name, column in columns.items():
        if column is not None and column.numel() and int(column.min()) < 0:
            raise ValueError(
                f"{name} must not be negative, got {int(column.min())}; number labels with encode()"
            )


def check_choice(name: str, value: str, allowed: Collection[str]) -> None:
    """Check that a setting is one of a closed set of words.

    Args:
        name: Argument name, for the message.
        value: What was given.
        allowed: What may be given.

    Raises:
        ValueError: ``value`` is not in ``allowed``.

    Example:
        >>> check_choice("level", "word", ("token", "turn"))
        Traceback (most recent call last):
        ValueError: level must be one of 'token', 'turn', got 'word'
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_range(name: str, value: float, *, low: float, high: float = float("inf")) -> None:
    """Check that a number lies in a closed interval.

    Args:
        name: Argument name, for the message.
        value: What was given.
        low: Smallest allowed value.
        high: Largest allowed value.

    Raises:
        ValueError: ``value`` is outside the interval, or not a number.

    Example:
        >>> check_range("gamma", 1.2, low=0, high=1)
        Traceback (most recent call last):
        ValueError: gamma must be in [0, 1], got 1.2
    """
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
