"""Decide whether two answers mean the same.

Place in the data flow: ``math`` passes one reading of the reference and one of the answer. Structure is compared here, numbers in
``numeric``, everything else by the ``SymbolicLayer`` that the caller supplies; without one, ``NeedsSymbolic`` says that it is needed.

The relation is symmetric but for two policies that belong to the reference: a decimal reference sets the precision, and a unit of
the reference has to be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from drmas_pl.grading.alternatives import assigned
from drmas_pl.grading.nodes import Apply, Node, Symbol, free_symbols
from drmas_pl.grading.numeric import decimal_step, exact_value, rounds_to
from drmas_pl.grading.shapes import (
    Based,
    Bracketed,
    Collection,
    Equation,
    Qualified,
    Relation,
    Shape,
    Value,
    Words,
)
from drmas_pl.grading.size import magnitude
from drmas_pl.grading.units import units_agree


class NeedsSymbolic(Exception):
    """Only symbolic mathematics can decide; raised when no such layer was supplied."""


class SymbolicLayer(Protocol):
    """Compare formulas that are no plain numbers."""

    def equal(self, reference: Node, answer: Node) -> bool:
        """Tell whether two formulas are equal for all values of their variables."""
        ...

    def proportional(self, reference: Node, answer: Node, *, positive: bool) -> bool:
        """Tell whether one formula is a constant, non-zero (or positive) multiple of the other."""
        ...


def same(reference: Shape, answer: Shape, symbolic: SymbolicLayer | None) -> bool:  # noqa: C901 - one line per kind of shape
    """Tell whether an answer means what the reference means.

    Args:
        reference: A reading of the reference.
        answer: A reading of the answer.
        symbolic: Decides what exact numbers cannot; None to find out whether it is needed.

    Raises:
        NeedsSymbolic: ``symbolic`` is None and exact numbers do not decide.
        TooLarge: A formula is too large to evaluate.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> same(read("1/2")[0], read("0.5")[0], None)
        True
    """
    match reference, answer:
        case Qualified(), Qualified():
            return reference.condition == answer.condition and same(reference.shape, answer.shape, symbolic)
        case Qualified(shape=inner), _:
            return same(inner, answer, symbolic)
        case _, Qualified(shape=inner):
            return same(reference, inner, symbolic)
        case Equation(), Equation():
            return _same_equation(reference, answer, symbolic)
        case Equation(), _:
            return _is_label(reference, answer) or all(
                same(value, answer, symbolic) for value in reference.values
            )
        case _, Equation():
            return _is_label(answer, reference) or all(
                same(reference, value, symbolic) for value in answer.values
            )
        case Value(), Value():
            return units_agree(reference.unit, answer.unit) and _same_formula(
                reference.node, answer.node, symbolic
            )
        case Words(), Words():
            return reference.text == answer.text
        case (Words(node=Symbol() | Apply() as left), Value(node=right)) | (
            Value(node=left),
            Words(node=Symbol() | Apply() as right),
        ):
            return _same_formula(left, right, symbolic)
        case Based(), Based():
            return reference == answer
        case Bracketed(), Bracketed():
            return _same_bracketed(reference, answer, symbolic)
        case Collection(), Collection():
            return _same_collection(reference, answer, symbolic)
    return _same_relation(_relation_of(reference), _relation_of(answer), symbolic)


def sized(shape: Shape) -> None:
    """Visit every formula of an answer and refuse those that are too large to evaluate.

    Raises:
        TooLarge: Some formula is.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> sized(read("2^{10}")[0])
    """
    match shape:
        case Value(node=node) | Words(node=Symbol() | Apply() as node) | Relation(difference=node):
            if exact_value(node) is None:
                magnitude(node)
        case Qualified(shape=inner):
            sized(inner)
        case Bracketed(items=items) | Collection(items=items) | Equation(values=items):
            for item in items:
                sized(item)


def divides_by_zero(shape: Shape) -> bool:
    """Tell whether an answer is a formula with a plain division by zero, which nothing equals.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> divides_by_zero(read("1/0")[0]), divides_by_zero(read("1/x")[0])
        (True, False)
    """
    return isinstance(shape, Value) and _has_zero_divisor(shape.node)


def _has_zero_divisor(node: Node) -> bool:
    """Look for the inverse of an exact zero inside a formula."""
    if not isinstance(node, Apply):
        return False
    if node.op == "inv" and exact_value(node.args[0]) == 0:
        return True
    return any(map(_has_zero_divisor, node.args))


def _same_formula(reference: Node, answer: Node, symbolic: SymbolicLayer | None) -> bool:
    """Compare two formulas: as trees, as exact numbers, then symbolically."""
    if reference == answer:
        return True
    wanted = exact_value(reference)
    found = exact_value(answer)
    if wanted is not None and found is not None:
        step = decimal_step(reference)
        return wanted == found if step is None else rounds_to(found, wanted, step)
    if free_symbols(reference) != free_symbols(answer):
        return False
    if symbolic is None:
        raise NeedsSymbolic
    return symbolic.equal(reference, answer)


def _same_equation(reference: Equation, answer: Equation, symbolic: SymbolicLayer | None) -> bool:
    """Compare what equal names stand for, or else the solution sets of two formulas."""
    if reference.name is not None and reference.name == answer.name:
        return all(same(wanted, found, symbolic) for wanted in reference.values for found in answer.values)
    if reference.difference is None or answer.difference is None:
        return False
    return _proportional(reference.difference, answer.difference, symbolic, positive=False)


def _is_label(choice: Equation, letter: Shape) -> bool:
    """Tell whether a letter alone names a labelled choice, ``(B) 12``."""
    return (
        isinstance(letter, Value)
        and isinstance(letter.node, Symbol)
        and choice.name == f"({letter.node.name})"
    )


def _relation_of(shape: Shape) -> Relation | None:
    """Return the relation that a shape is, or was read from."""
    return shape.relation if isinstance(shape, Bracketed) else shape if isinstance(shape, Relation) else None


def _same_relation(
    reference: Relation | None, answer: Relation | None, symbolic: SymbolicLayer | None
) -> bool:
    """Compare inequalities up to a positive factor, and inequations up to any factor; other things are no relations."""
    if reference is None or answer is None or reference.order != answer.order:
        return False
    return _proportional(reference.difference, answer.difference, symbolic, positive=reference.order != "!=")


def _proportional(reference: Node, answer: Node, symbolic: SymbolicLayer | None, *, positive: bool) -> bool:
    """Compare two formulas up to a constant factor."""
    if reference == answer:
        return True
    if free_symbols(reference) != free_symbols(answer):
        return False
    if symbolic is None:
        raise NeedsSymbolic
    return symbolic.proportional(reference, answer, positive=positive)


def _same_bracketed(reference: Bracketed, answer: Bracketed, symbolic: SymbolicLayer | None) -> bool:
    """Compare tuples and intervals: brackets, variable where both name one, then items in order."""
    if (reference.opener, reference.closer, len(reference.items)) != (
        answer.opener,
        answer.closer,
        len(answer.items),
    ):
        return False
    if reference.name is not None and answer.name is not None and reference.name != answer.name:
        return False
    return all(
        same(wanted, found, symbolic) for wanted, found in zip(reference.items, answer.items, strict=True)
    )


def _same_collection(reference: Collection, answer: Collection, symbolic: SymbolicLayer | None) -> bool:
    """Compare without order: as sets when either is written as one, otherwise item for item."""
    named = assigned(reference.items)
    renamed = assigned(answer.items)
    if bool(named) != bool(renamed):
        # What different names stand for has an order, in which a list may follow but a set does not.
        wanted = named or reference.items
        found = renamed or answer.items
        is_list = not (
            reference.braced or answer.braced or any(isinstance(item, Equation) for item in (*wanted, *found))
        )
        return (
            is_list
            and len(wanted) == len(found)
            and all(same(*pair, symbolic) for pair in zip(wanted, found, strict=True))
        )
    if reference.braced or answer.braced:
        return all(
            any(same(wanted, found, symbolic) for found in answer.items) for wanted in reference.items
        ) and all(any(same(wanted, found, symbolic) for wanted in reference.items) for found in answer.items)
    return len(reference.items) == len(answer.items) and _matched(
        reference.items, list(answer.items), symbolic
    )


def _matched(wanted: Sequence[Shape], found: list[Shape], symbolic: SymbolicLayer | None) -> bool:
    """Pair every wanted item with a different found one; greedy, since equality is transitive between exact items."""
    for item in wanted:
        partner = next((index for index, other in enumerate(found) if same(item, other, symbolic)), None)
        if partner is None:
            return False
        del found[partner]
    return True
