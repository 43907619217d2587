"""Questions that are too long for the prompt budget."""

import pytest

from drmas_pl.data.lengths import within_length
from drmas_pl.errors import DataError
from drmas_pl.types import Task

TASKS = (Task("a", "one two"), Task("b", "one"), Task("c", "one two three"))


def test_long_questions_are_dropped_in_order() -> None:
    assert [task.id for task in within_length(TASKS, 7)] == ["a", "b"]
    assert within_length(TASKS, 13) == TASKS


def test_length_is_measured_as_asked() -> None:
    assert [task.id for task in within_length(TASKS, 1, length=lambda text: len(text.split()))] == ["b"]


def test_long_questions_are_refused_when_asked() -> None:
    with pytest.raises(
        DataError, match=r"2 of 3 questions are longer than 3, the longest is task 'c' with 13; raise"
    ):
        within_length(TASKS, 3, overlong="error")
    assert within_length(TASKS, 13, overlong="error") == TASKS


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        within_length(TASKS, 0)
    with pytest.raises(ValueError, match="overlong must be 'drop' or 'error', got 'cut'"):
        within_length(TASKS, 3, overlong="cut")  # type: ignore[arg-type]
