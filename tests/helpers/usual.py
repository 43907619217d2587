"""Which of many cases the default suite runs; the others are marked slow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def usual(cases: Sequence[Any], names: Collection[Any]) -> list[Any]:
    """Keep the cases in ``names`` in the default suite."""
    lost = [name for name in names if name not in cases]
    assert not lost, f"{lost} are none of the cases {cases}"
    return [case if case in names else pytest.param(case, marks=pytest.mark.slow) for case in cases]
