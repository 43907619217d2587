"""Name the kinds of thing an answer can be.

Place in the data flow: ``reading`` builds these values from an answer's text, ``compare`` walks two of them side by side. They hold
formulas as trees of ``expression`` and decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drmas_pl.grading.nodes import Node

Order = Literal["<", "<=", "!="]


@dataclass(frozen=True, slots=True)
class Value:
    """A formula, with its unit if one was written."""

    node: Node
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """Plain words in lower case; ``node`` is their reading as a product of letters, if any."""

    text: str
    node: Node | None = None


@dataclass(frozen=True, slots=True)
class Based:
    """A numeral with an explicit base other than ten."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Relation:
    """``difference > 0``, ``>= 0`` or ``!= 0`` for the orders ``<``, ``<=`` and ``!=``."""

    order: Order
    difference: Node


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A tuple, interval or matrix row: order counts, and so do the brackets; ``name`` and ``relation`` come from an inequality."""

    opener: str
    closer: str
    items: tuple[Shape, ...]
    name: str | None = None
    relation: Relation | None = None


@dataclass(frozen=True, slots=True)
class Collection:
    """Alternatives, list, union or (``braced``) set: order does not count."""

    items: tuple[Shape, ...]
    braced: bool = False


@dataclass(frozen=True, slots=True)
class Equation:
    """A chain of equal things; with a ``name`` it says what the name is, and ``difference`` is left minus right side."""

    name: str | None
    values: tuple[Shape, ...]
    difference: Node | None = None


@dataclass(frozen=True, slots=True)
class Qualified:
    """An answer with what its letters range over, as text: it may be left out, but must not differ."""

    shape: Shape
    condition: str


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that this reader does not understand, without white space."""

    text: str


Shape = Value | Words | Based | Relation | Bracketed | Collection | Equation | Qualified | Raw
