r"""Name what else an answer stands for besides what its notation says first.

Place in the data flow: ``reading`` adds these readings behind the first ones; equality under any one suffices. Each is a convention of
writing that both sides may follow: a column vector is a list of coordinates, ``x = 1, y = 2`` is ``(x, y) = (1, 2)``, a set of one
element is that element, ``x \ne 3`` is a union of intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from drmas_pl.grading.intervals import REALS, without_points
from drmas_pl.grading.shapes import Bracketed, Collection, Equation, Relation, Shape, Words

_PHRASES: Final[dict[str, Shape]] = {
    **dict.fromkeys(
        ("no solution", "no solutions", "there are no solutions", "empty set", "the empty set"),
        Collection((), braced=True),
    ),
    **dict.fromkeys(
        ("all real numbers", "all reals", "real numbers", "all real", "the set of all real numbers"), REALS
    ),
}


def other_readings(shape: Shape) -> Iterator[Shape]:
    r"""Yield further shapes that a shape stands for.

    Args:
        shape: What ``reading`` made of an answer.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> [type(each).__name__ for each in other_readings(read(r"\{3\}")[0])]
        ['Value']
    """
    match shape:
        case Words(text=text) if text in _PHRASES:
            yield _PHRASES[text]
        case Equation(name=str(name), values=(Bracketed(opener="(", items=items),)):
            names = name.strip("()").split(",")
            if len(names) == len(items) and sorted(names) != names:
                yield _tuple_equation(dict(zip(names, items, strict=True)))
        case Collection(items=(single,), braced=True) if not isinstance(single, Collection):
            yield single
        case Bracketed(opener="matrix", items=rows) if all(
            isinstance(row, Bracketed) and len(row.items) == 1 for row in rows
        ):
            yield Bracketed("(", ")", tuple(row.items[0] for row in rows if isinstance(row, Bracketed)))
        case Relation() if (punctured := without_points([shape])) is not None:
            yield punctured
        case Collection(items=items) if len(items) > 1:
            if letters := _letters(items):
                yield _tuple_equation(letters)
            if (punctured := without_points(items)) is not None:
                yield punctured


def assigned(items: Sequence[Shape]) -> tuple[Shape, ...]:
    """Return what different single letters stand for, in alphabetical order; nothing when the items say anything else.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> len(assigned(read("y=2, x=1")[0].items)), assigned(read("x=1, x=2")[0].items)
        (2, ())
    """
    found = _letters(items)
    return tuple(found[name] for name in sorted(found))


def _letters(items: Sequence[Shape]) -> dict[str, Shape]:
    """Collect equations for different single letters; empty when there is any other item."""
    found: dict[str, Shape] = {}
    for item in items:
        if (
            isinstance(item, Equation)
            and item.name is not None
            and len(item.name) == 1
            and len(item.values) == 1
        ):
            found[item.name] = item.values[0]
    return found if len(found) == len(items) > 1 else {}


def _tuple_equation(values: Mapping[str, Shape]) -> Equation:
    """Say what several names are, in alphabetical order."""
    names = sorted(values)
    return Equation(f"({','.join(names)})", (Bracketed("(", ")", tuple(values[name] for name in names)),))
