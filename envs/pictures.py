"""Small images of boards as numpy arrays, for ``render_mode="rgb_array"``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Image = NDArray[np.uint8]
CELL: Final = 16
WHITE: Final[Colour] = (245, 245, 240)
BLACK: Final[Colour] = (40, 40, 45)
GREY: Final[Colour] = (150, 150, 155)
BLUE: Final[Colour] = (50, 100, 200)
GREEN: Final[Colour] = (60, 160, 90)
RED: Final[Colour] = (205, 70, 60)
BROWN: Final[Colour] = (165, 115, 65)
# Five rows of three dots per sign, each row a binary number.
_SIGNS: Final = {
    "0": (7, 5, 5, 5, 7),
    "1": (2, 6, 2, 2, 7),
    "2": (7, 1, 7, 4, 7),
    "3": (7, 1, 7, 1, 7),
    "4": (5, 5, 7, 1, 1),
    "5": (7, 4, 7, 1, 7),
    "6": (7, 4, 7, 5, 7),
    "7": (7, 1, 2, 2, 2),
    "8": (7, 5, 7, 5, 7),
    "9": (7, 5, 7, 1, 7),
    "X": (5, 5, 2, 5, 5),
    "O": (2, 5, 5, 5, 2),
    "J": (1, 1, 1, 5, 2),
    "Q": (2, 5, 5, 6, 3),
    "K": (5, 5, 6, 5, 5),
}


def paint(colours: Sequence[Sequence[Colour]], signs: Sequence[str] = (), *, ink: Colour = BLACK) -> Image:
    """Paint a board of square cells with a thin line around each.

    Args:
        colours: Colour of each cell, row by row.
        signs: For each row a text with one letter per cell; letters without a picture leave the cell empty.
        ink: Colour of the letters.

    Returns:
        (16·rows, 16·columns, 3) uint8.

    >>> paint([[WHITE, BLACK]], ["7."]).shape
    (16, 32, 3)
    """
    image = np.repeat(np.repeat(np.asarray(colours, dtype=np.uint8), CELL, axis=0), CELL, axis=1)
    image[::CELL] = image[:, ::CELL] = GREY
    for row, line in enumerate(signs):
        for column, sign in enumerate(line):
            if sign in _SIGNS:
                top = row * CELL + 3
                left = column * CELL + 5
                image[top : top + 10, left : left + 6][_dots(sign)] = ink
    return image


def _dots(sign: str) -> NDArray[Any]:
    """Return the (10, 6) mask of a sign, two pixels per dot."""
    rows = np.array([[bits >> place & 1 for place in (2, 1, 0)] for bits in _SIGNS[sign]], dtype=bool)
    return np.repeat(np.repeat(rows, 2, axis=0), 2, axis=1)
