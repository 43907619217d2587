"""Recognise formulas that are linear in a variable.

Place in the data flow: ``relations`` solves linear inequalities with the coefficients found here.
"""

from __future__ import annotations

from fractions import Fraction

from drmas_pl.grading.nodes import Apply, Node, Symbol, free_symbols
from drmas_pl.grading.numeric import TooLarge, exact_value


def linear_coefficients(node: Node, name: str) -> tuple[Fraction, Fraction] | None:
    """Write a formula as ``slope * name + constant``.

    Args:
        node: Any formula.
        name: The only variable it may have.

    Returns:
        Slope and constant, or None when the formula is not plainly linear with rational coefficients.

    Example:
        >>> from drmas_pl.grading.nodes import Number
        >>> linear_coefficients(Apply("mul", (Number(Fraction(2)), Symbol("x"))), "x")
        (Fraction(2, 1), Fraction(0, 1))
        >>> linear_coefficients(Apply("mul", (Symbol("x"), Symbol("x"))), "x") is None
        True
    """
    if node == Symbol(name):
        return Fraction(1), Fraction(0)
    if not free_symbols(node):
        return _constant(node)
    if not isinstance(node, Apply) or node.op not in ("add", "mul", "neg"):
        return None
    slope = Fraction(0)
    constant = Fraction(node.op == "mul")
    for argument in node.args:
        found = linear_coefficients(argument, name)
        if found is None or (node.op == "mul" and slope != 0 and found[0] != 0):
            return None
        if node.op == "mul":
            slope = slope * found[1] + constant * found[0]
            constant = constant * found[1]
        else:
            slope = slope + found[0]
            constant = constant + found[1]
    return (-slope, -constant) if node.op == "neg" else (slope, constant)


def _constant(node: Node) -> tuple[Fraction, Fraction] | None:
    """Evaluate a part without the variable; large numbers are left to others."""
    try:
        value = exact_value(node)
    except TooLarge:
        return None
    return None if value is None or abs(value) > 10**12 else (Fraction(0), value)
