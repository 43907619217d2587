"""Values of spaces as text: arrays by rows, mappings, and whatever is no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from drmas_pl.integrations.spaces import can_read, can_write, describe_actions, legal_actions, read, write


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([0.0, 1.0, 0.12345678]), "0 1 0.1235"),
        (np.array([[1, 2], [3, 4]]), "1 2\n3 4"),
        (np.stack([np.eye(2, dtype=np.int8), np.zeros((2, 2), dtype=np.int8)], axis=-1),
         "plane 1:\n1 0\n0 1\n\nplane 2:\n0 0\n0 0"),
        (np.array(3), "3"),
        (np.float32(0.5), "0.5"),
        (np.True_, "1"),
        ({"a": (1, "door")}, "a: 1, door"),
        ("text", "text"),
        (None, None),
    ],
    ids=repr,
)  # fmt: skip
def test_values_are_written(value: Any, text: Any) -> None:
    assert write(value) == text


def test_large_arrays_have_no_text_and_small_ones_do() -> None:
    assert can_write(spaces.Box(-1, 1, (4,))) and not can_write(spaces.Box(0, 255, (64, 64, 3)))
    assert not can_read(spaces.Box(-1, 1, (4,)))


def test_a_mask_starts_where_its_space_does() -> None:
    assert legal_actions([0, 1, 1], spaces.Discrete(3, start=-1)) == (0, 1)
    assert legal_actions(None, spaces.Discrete(3)) is None
    assert legal_actions([1], spaces.Text(3)) is None


@pytest.mark.parametrize("number", range(-1, 2))
def test_what_is_listed_is_read_again(number: int) -> None:
    space = spaces.Discrete(3, start=-1)
    names = ("back", "stay", "on")
    assert f"{number} ({names[number + 1]})" in describe_actions(space, names=names)
    assert read(str(number), space, names=names) == read(names[number + 1], space, names=names) == number


def test_text_is_taken_as_it_is() -> None:
    assert describe_actions(None) == "" and read(" any. ", spaces.Text(9)) == " any. "
