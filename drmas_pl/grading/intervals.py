r"""Build intervals: from two ends, from half-lines that overlap, from points that are taken out.

Place in the data flow: ``reading`` and ``relations`` make intervals here, so that one set of numbers has one form however it was typed.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from drmas_pl.grading.linear import linear_coefficients
from drmas_pl.grading.nodes import Node, Number, Symbol, free_symbols, negate
from drmas_pl.grading.numeric import TooLarge, exact_value
from drmas_pl.grading.shapes import Bracketed, Collection, Relation, Shape, Value

INFINITY: Final = Symbol("oo")
REALS: Final = Bracketed("(", ")", (Value(negate(INFINITY)), Value(INFINITY)))


def interval(
    opener: str,
    closer: str,
    items: tuple[Shape, ...],
    name: str | None = None,
    relation: Relation | None = None,
) -> Bracketed:
    """Build an interval or tuple; an infinite end is open however it was typed.

    Example:
        >>> interval("[", "]", (Value(negate(INFINITY)), Value(INFINITY))) == REALS
        True
    """
    if items and items[0] == Value(negate(INFINITY)):
        opener = "("
    if items and items[-1] == Value(INFINITY):
        closer = ")"
    return Bracketed(opener, closer, items, name, relation)


def overlap(items: Sequence[Shape]) -> Bracketed | None:
    """Return the interval between two half-lines of one variable that point at each other and overlap; None for anything else.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> overlap([read("x>1")[0], read("x<=3")[0]]) == read("1<x<=3")[0]
        True
    """
    lower = [
        item for item in items if isinstance(item, Bracketed) and item.name and _end(item, -1) == INFINITY
    ]
    upper = [
        item
        for item in items
        if isinstance(item, Bracketed) and item.name and _end(item, 0) == negate(INFINITY)
    ]
    if len(items) != 2 or len(lower) != 1 or len(upper) != 1 or lower[0].name != upper[0].name:
        return None
    low = _end(lower[0], 0)
    high = _end(upper[0], -1)
    if low is None or high is None or not _is_less(low, high):
        return None
    return interval(lower[0].opener, upper[0].closer, (Value(low), Value(high)), lower[0].name)


def without_points(items: Sequence[Shape]) -> Collection | None:
    r"""Read inequations of one variable as the intervals between the points that they take out; None for anything else.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> len(without_points([read(r"x \ne 3")[0]]).items)
        2
    """
    points: set[Fraction] = set()
    names: set[str] = set()
    for item in items:
        if (
            not isinstance(item, Relation)
            or item.order != "!="
            or len(found := free_symbols(item.difference)) != 1
        ):
            return None
        names |= found
        coefficients = linear_coefficients(item.difference, *found)
        if coefficients is None or coefficients[0] == 0:
            return None
        points.add(-coefficients[1] / coefficients[0])
    return gaps([Number(point) for point in sorted(points)], *names) if len(names) == 1 else None


def gaps(points: Sequence[Node], name: str | None = None) -> Collection:
    """Return the open intervals that the real line without some points consists of.

    Args:
        points: Different numbers in ascending order.
        name: The variable, where there is one.

    Example:
        >>> len(gaps([Number(Fraction(1)), Number(Fraction(2))]).items)
        3
    """
    ends = [negate(INFINITY), *points, INFINITY]
    return Collection(
        tuple(interval("(", ")", (Value(low), Value(high)), name) for low, high in pairwise(ends))
    )


def _is_less(low: Node, high: Node) -> bool:
    """Compare two rational numbers; what is no rational number is not less."""
    try:
        left = exact_value(low)
        right = exact_value(high)
    except TooLarge:
        return False
    return left is not None and right is not None and left < right


def _end(item: Bracketed, index: int) -> Node | None:
    """Return an end of an interval as a formula."""
    end = item.items[index]
    return end.node if isinstance(end, Value) else None
