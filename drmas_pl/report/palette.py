"""Colours and second codes of every picture: one colour per agent, on the page, in figures and in the terminal.

The colours are those of Okabe and Ito, changed as far as contrast on white and on black asks for it. A marker and a dash say the same a
second time, for whoever does not see the colours.
"""

from __future__ import annotations

from typing import Final

# on a light ground: pages and figures
LIGHT: Final = ("#0072b2", "#b87700", "#008f68", "#7a1f1f", "#3d2fb0", "#36424d", "#5f8fe8")
# on a dark ground: pages, and terminals as most are
DARK: Final = ("#56b4e9", "#e69f00", "#2bb58c", "#f5e663", "#8a6cff", "#e8ecf0", "#e0523a")
# of Matplotlib
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Final[tuple[tuple[float, ...], ...]] = (
    (),
    (7, 3),
    (2, 3),
    (9, 3, 2, 3),
    (12, 4),
    (1, 2),
    (5, 2, 1, 2, 1, 2),
)
# of terminals, one character each
SIGNS: Final = ("●", "■", "▲", "◆", "▼", "✚", "✖")


def colour_of(place: int, *, dark: bool = False) -> str:
    """Return the colour of an agent or of a compared run by its place, as ``#rrggbb``.

    >>> colour_of(0), colour_of(7) == colour_of(0)
    ('#0072b2', True)
    """
    colours = DARK if dark else LIGHT
    return colours[place % len(colours)]


def line_style(place: int) -> dict[str, object]:
    """Return Matplotlib's options of a curve by its place: colour, marker and dashes.

    >>> line_style(1)["marker"]
    's'
    """
    dashes = DASHES[place % len(DASHES)]
    return {
        "color": colour_of(place),
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": (0, dashes) if dashes else "-",
    }
