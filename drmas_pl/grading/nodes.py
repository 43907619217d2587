"""Hold a formula as a small tree.

Place in the data flow: ``expression`` builds trees from tokens; ``numeric``, ``evaluate`` and ``compare`` walk them. Three kinds of node
suffice, so that the size of a formula can be judged before any arithmetic happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

CONSTANTS: Final = frozenset({"pi", "e", "i", "oo"})
"""Symbols that are no variables; ``oo`` is infinity."""


@dataclass(frozen=True, slots=True)
class Number:
    """A literal: its exact value, and the number of digits after its decimal point (None without a point)."""

    value: Fraction
    places: int | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable or a constant of ``CONSTANTS``."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on nodes; ``add`` and ``mul`` take any number of arguments, ``neg`` and ``inv`` stand for minus and division."""

    op: str
    args: tuple[Node, ...]


Node = Number | Symbol | Apply


def free_symbols(node: Node) -> frozenset[str]:
    """Return the names of a formula's variables.

    Example:
        >>> sorted(free_symbols(Apply("mul", (Symbol("pi"), Symbol("r")))))
        ['r']
    """
    if isinstance(node, Symbol):
        return frozenset() if node.name in CONSTANTS else frozenset({node.name})
    if isinstance(node, Apply):
        return frozenset().union(*map(free_symbols, node.args))
    return frozenset()


def negate(node: Node) -> Node:
    """Return minus ``node``.

    Example:
        >>> negate(Symbol("x"))
        Apply(op='neg', args=(Symbol(name='x'),))
    """
    return Apply("neg", (node,))


def subtract(left: Node, right: Node) -> Node:
    """Return ``left - right``.

    Example:
        >>> subtract(Symbol("x"), Symbol("y")).op
        'add'
    """
    return Apply("add", (left, negate(right)))
