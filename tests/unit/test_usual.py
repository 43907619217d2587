"""The default suite runs some of many cases, and the slow one the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.usual import usual


def slow(cases: list[Any]) -> list[Any]:
    """Return the values of the cases that are marked slow."""
    return [case.values[0] for case in cases if getattr(case, "marks", ())]


def test_named_cases_stay_and_no_case_is_lost() -> None:
    cases = usual(["a", "b", "c"], {"b"})
    assert len(cases) == 3 and cases[1] == "b" and slow(cases) == ["a", "c"]
    with pytest.raises(AssertionError, match=r"\['x'\] are none of the cases"):
        usual(["a"], ["x"])
