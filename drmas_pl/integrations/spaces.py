"""Values of Gymnasium's spaces as text: observations are written out, actions are read.

Place in the data flow: the adapters of this package show observations and read utterances with these functions where the user gives no
functions of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

# a board of go has 361 points; an image has more numbers than anybody reads
MAX_NUMBERS: Final = 2048
# what models put around a move: brackets, quotes, a full stop
_AROUND: Final = " \t\r\n[](){}<>'\"`*.,;:!"
_HIGHLIGHT: Final = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")


def can_write(space: Space[Any] | None) -> bool:
    """Tell whether values of a space have a text form of their own; a space that is not declared is taken for text.

    >>> can_write(Discrete(3)), can_write(Box(0, 255, (96, 96, 3)))
    (True, False)
    """
    if isinstance(space, Dict):
        return all(map(can_write, space.values()))
    if isinstance(space, Tuple):
        return all(map(can_write, space))
    if isinstance(space, Box):
        return int(np.prod(space.shape)) <= MAX_NUMBERS
    return is_text(space) or isinstance(space, (Discrete, MultiDiscrete, MultiBinary))


def can_read(space: Space[Any] | None) -> bool:
    """Tell whether actions of a space can be read from text.

    >>> can_read(MultiDiscrete([3, 2])), can_read(MultiDiscrete([[3, 2]]))
    (True, False)
    """
    if isinstance(space, (MultiDiscrete, MultiBinary)):
        return len(space.shape or ()) == 1
    return is_text(space) or isinstance(space, Discrete)


def is_text(space: Space[Any] | None) -> bool:
    """Tell whether values of a space are texts."""
    # Gymnasium says that a data type is one of numpy; of texts it is Python's
    kind: Any = None if space is None else space.dtype
    return space is None or isinstance(space, Text) or kind is str


def write(value: Any) -> Any:
    """Write a value out: whole numbers as they are, others with four digits, rows of an array as lines.

    Returns:
        The text; what is no number, array, tuple or mapping of these comes back as it is.

    >>> write({"seen": np.array([[1, 0], [0, 1]]), "keys": np.int64(2)})
    'seen:\\n1 0\\n0 1\\nkeys: 2'
    """
    if isinstance(value, Mapping):
        return "\n".join(_entry(str(name), write(item)) for name, item in value.items())
    if isinstance(value, tuple):
        return ", ".join(str(write(item)) for item in value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iubf":
        return _rows(value)
    if isinstance(value, np.floating):
        return _digits(value)
    return str(int(value)) if isinstance(value, (int, np.integer, np.bool_)) else value


def render_as_text(picture: str) -> str:
    """Return what ``render`` gives in the mode ``ansi`` without control sequences; what is coloured stands in brackets.

    >>> render_as_text("\\n\\x1b[41mS\\x1b[0mFF\\n")
    '[S]FF'
    """
    return _ESCAPE.sub("", _HIGHLIGHT.sub(r"[\1]", picture)).strip("\n")


def legal_actions(mask: Any, space: Space[Any] | None) -> tuple[int, ...] | None:
    """Return the numbers that a mask of a ``Discrete`` space lets through; None where there is no mask.

    >>> legal_actions(np.array([1, 0, 1], dtype=np.int8), Discrete(3, start=1))
    (1, 3)
    """
    if mask is None or not isinstance(space, Discrete):
        return None
    return tuple(int(space.start) + int(place) for place in np.flatnonzero(np.asarray(mask)))


def describe_actions(
    space: Space[Any] | None, *, names: Sequence[str] = (), legal: Sequence[int] | None = None
) -> str:
    """Say what an action is; empty for text.

    Args:
        space: The space of actions.
        names: What the numbers of a ``Discrete`` space are called.
        legal: The numbers that are possible now; None for all.

    >>> describe_actions(Discrete(4), names=("left", "down", "right", "up"), legal=(0, 2))
    'Possible actions: 0 (left), 2 (right).'
    >>> describe_actions(Discrete(1000))
    'An action is a whole number from 0 to 999.'
    >>> describe_actions(MultiDiscrete([3, 2]))
    'An action is 2 whole numbers with spaces between them, of at least 0 and at most 2, 1.'
    """
    if isinstance(space, Discrete):
        first = int(space.start)
        last = first + int(space.n) - 1
        if legal is None and not names:
            return f"An action is a whole number from {first} to {last}."
        shown = range(first, last + 1) if legal is None else legal
        return f"Possible actions: {', '.join(_called(number, first, names) for number in shown)}."
    if isinstance(space, (MultiDiscrete, MultiBinary)):
        low, high = _bounds(space)
        least = " ".join(map(str, sorted(set(low))))
        most = ", ".join(map(str, high))
        return f"An action is {len(low)} whole numbers with spaces between them, of at least {least} and at most {most}."
    return ""


def read(
    text: str, space: Space[Any] | None, *, names: Sequence[str] = (), legal: Sequence[int] | None = None
) -> Any:
    """Read an action.

    Args:
        text: What was said; for numbers, brackets, quotes and full stops around it are left out.
        space: The space of actions.
        names: What the numbers of a ``Discrete`` space are called; capitals do not matter.
        legal: The numbers that are possible now; None for all.

    Returns:
        The text itself, a number or an array.

    Raises:
        ValueError: The text names no action, or one that is not possible now; the message says what to write instead.

    >>> read(" [Right]. ", Discrete(4), names=("left", "down", "right", "up"))
    2
    """
    if isinstance(space, Discrete):
        return _read_number(text, space, names, legal)
    if isinstance(space, (MultiDiscrete, MultiBinary)):
        return _read_numbers(text, space)
    return text


def _read_number(text: str, space: Discrete, names: Sequence[str], legal: Sequence[int] | None) -> int:
    first = int(space.start)
    word = text.strip(_AROUND)
    known = {name.casefold(): first + place for place, name in enumerate(names)}
    number = known.get(word.casefold(), _whole(word))
    possible = range(first, first + int(space.n)) if legal is None else legal
    if number is None or number not in possible:
        raise ValueError(_remedy(space, names, legal))
    return number


def _remedy(space: Discrete, names: Sequence[str], legal: Sequence[int] | None) -> str:
    first = int(space.start)
    if legal is None and not names:
        return f"answer with a whole number from {first} to {first + int(space.n) - 1}"
    shown = range(first, first + int(space.n)) if legal is None else legal
    return f"answer with one of {', '.join(_called(number, first, names) for number in shown)}"


def _read_numbers(text: str, space: MultiDiscrete | MultiBinary) -> Any:
    low, high = _bounds(space)
    found = [_whole(word) for word in text.strip(_AROUND).replace(",", " ").split()]
    inside = len(found) == len(low) and all(
        number is not None and least <= number <= most
        for number, least, most in zip(found, low, high, strict=True)
    )
    if not inside:
        raise ValueError(
            f"answer with {len(low)} whole numbers from {' '.join(map(str, low))} to {' '.join(map(str, high))}"
        )
    return np.array(found, dtype=space.dtype)


def _bounds(space: MultiDiscrete | MultiBinary) -> tuple[list[int], list[int]]:
    """Return the least and the largest number in each place."""
    if isinstance(space, MultiBinary):
        count = int(space.shape[0])
        return [0] * count, [1] * count
    low = [int(value) for value in space.start]
    return low, [least + int(count) - 1 for least, count in zip(low, space.nvec, strict=True)]


def _whole(word: str) -> int | None:
    """Return a whole number of at most 20 digits, or None."""
    return int(word) if len(word) <= 20 and word.removeprefix("-").isdecimal() else None


def _called(number: int, first: int, names: Sequence[str]) -> str:
    place = number - first
    return f"{number} ({names[place]})" if place < len(names) else str(number)


def _entry(name: str, text: Any) -> str:
    return f"{name}:\n{text}" if "\n" in str(text) else f"{name}: {text}"


def _rows(array: Any) -> str:
    """Write an array row by row; planes along a third axis, the last one, stand below each other."""
    if array.ndim <= 1:
        return " ".join(_digits(value) for value in array.ravel())
    if array.ndim == 2:
        return "\n".join(_rows(row) for row in array)
    planes = [_rows(array[..., place]) for place in range(array.shape[-1])]
    return "\n\n".join(f"plane {place + 1}:\n{plane}" for place, plane in enumerate(planes))


def _digits(value: Any) -> str:
    return str(int(value)) if float(value).is_integer() else f"{float(value):.4g}"
