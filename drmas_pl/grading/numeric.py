"""Evaluate formulas exactly.

Place in the data flow: ``compare`` asks here first; only formulas that are no rational number go on to ``symbolic``. Work is bounded:
sizes are measured in bits before a power, factorial or binomial is formed, so that no answer can stall the grader.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from drmas_pl.grading.nodes import Apply, Node, Number, Symbol

MAX_RATIONAL_BITS: Final = 131_072


class TooLarge(ValueError):
    """A formula stands for a number that is larger than the grader is willing to form."""


def exact_value(node: Node) -> Fraction | None:
    """Evaluate a formula as a rational number.

    Args:
        node: Any formula.

    Returns:
        Its exact value, or None when it has variables, is irrational or undefined.

    Raises:
        TooLarge: A partial result would need more than ``MAX_RATIONAL_BITS``.

    Example:
        >>> exact_value(Apply("pow", (Number(Fraction(4, 9)), Number(Fraction(1, 2)))))
        Fraction(2, 3)
        >>> exact_value(Symbol("x")) is None
        True
    """
    if isinstance(node, Number):
        return _checked(node.value)
    if isinstance(node, Symbol) or node.op not in RULES:
        return None
    values = []
    for argument in node.args:
        value = exact_value(argument)
        if value is None:
            return None
        values.append(value)
    try:
        result = RULES[node.op](*values)
    except ZeroDivisionError:
        return None
    return None if result is None else _checked(result)


def decimal_step(node: Node) -> Fraction | None:
    """Return the unit of the last written place of a decimal, or None when the formula is no decimal literal.

    Signs, a percent mark and a power of ten behind the literal are allowed: ``1.2`` has step 1/10, ``1.2 * 10^-3`` has 1/10000.

    Example:
        >>> decimal_step(Number(Fraction(3, 2), places=1))
        Fraction(1, 10)
        >>> decimal_step(Number(Fraction(3, 2))) is None
        True
    """
    if isinstance(node, Number):
        return None if node.places is None else Fraction(1, 10) ** node.places
    if not isinstance(node, Apply):
        return None
    step = decimal_step(node.args[0])
    if step is None or node.op == "neg":
        return step
    if node.op == "percent":
        return step / 100
    if node.op == "mul" and len(node.args) == 2 and isinstance(node.args[1], Apply):
        power = node.args[1]
        if power.op == "pow" and power.args[0] == Number(Fraction(10)):
            scale = exact_value(power)
            return None if scale is None else step * scale
    return None


def rounds_to(value: Fraction, target: Fraction, step: Fraction) -> bool:
    """Tell whether ``value`` rounded to multiples of ``step``, halves away from zero, is ``target``.

    Example:
        >>> rounds_to(Fraction(1, 3), Fraction(33, 100), Fraction(1, 100))
        True
        >>> rounds_to(Fraction(335, 1000), Fraction(33, 100), Fraction(1, 100))
        False
    """
    steps = abs(value) / step
    rounded = math.floor(steps + Fraction(1, 2)) * step
    return (rounded if value >= 0 else -rounded) == target


def _checked(value: Fraction) -> Fraction:
    """Pass a value on unless it is too large."""
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_RATIONAL_BITS:
        raise TooLarge(f"number has more than {MAX_RATIONAL_BITS} bits")
    return value


def _refuse_above(bits: float) -> None:
    """Raise before a number of about ``bits`` bits is formed."""
    if bits > MAX_RATIONAL_BITS:
        raise TooLarge(f"number would have about {bits:.3g} bits, more than {MAX_RATIONAL_BITS}")


def _add(*terms: Fraction) -> Fraction:
    """Add left to right, checking every partial sum."""
    total = Fraction(0)
    for term in terms:
        total = _checked(total + term)
    return total


def _multiply(*factors: Fraction) -> Fraction:
    """Multiply left to right, checking every partial product."""
    product = Fraction(1)
    for factor in factors:
        product = _checked(product * factor)
    return product


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Raise to an integer, or take a root that comes out exactly."""
    if base in (0, 1) and exponent > 0:
        return base
    if base == -1 and exponent.denominator == 1:
        return Fraction(1 if exponent.numerator % 2 == 0 else -1)
    size = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
    _refuse_above(size * float(min(abs(exponent), Fraction(10**12))))
    if exponent.denominator == 1:
        return base**exponent.numerator
    if base < 0 or exponent.denominator > 64:
        return None
    top = _root(base.numerator, exponent.denominator)
    bottom = _root(base.denominator, exponent.denominator)
    return None if top is None or bottom is None else Fraction(top, bottom) ** exponent.numerator


def _signed_root(value: Fraction, index: Fraction) -> Fraction | None:
    """Take a root; an odd one of a negative number is negative."""
    if value < 0 and index.denominator == 1 and index.numerator % 2 == 1:
        positive = _power(-value, 1 / index)
        return None if positive is None else -positive
    return _power(value, 1 / index)


def _root(number: int, degree: int) -> int | None:
    """Return the exact integer root of a natural number, or None; Newton's method from above."""
    if number == 0:
        return 0
    root = 1 << -(-number.bit_length() // degree)
    while (smaller := ((degree - 1) * root + number // root ** (degree - 1)) // degree) < root:
        root = smaller
    return root if root**degree == number else None


def _factorial(number: Fraction) -> Fraction | None:
    """Form a factorial of a natural number."""
    if number.denominator != 1 or number < 0:
        return None
    count = min(number.numerator, 10**12)
    _refuse_above(count * math.log2(max(count, 1) + 1) - count)
    return Fraction(math.factorial(count))


def _double_factorial(number: Fraction) -> Fraction | None:
    """Form the product of every second natural number up to a natural number."""
    if number.denominator != 1 or number < 0:
        return None
    count = min(number.numerator, 10**12)
    _refuse_above(count * math.log2(max(count, 1) + 1) / 2)
    return Fraction(math.prod(range(count, 0, -2)))


def _whole(rule: Callable[..., int]) -> Callable[..., Fraction | None]:
    """Restrict a rule to whole numbers."""

    def restricted(*values: Fraction) -> Fraction | None:
        if any(value.denominator != 1 for value in values):
            return None
        return Fraction(rule(*(value.numerator for value in values)))

    return restricted


def _binomial(upper: Fraction, lower: Fraction) -> Fraction | None:
    """Form a binomial coefficient of natural numbers."""
    if upper.denominator != 1 or lower.denominator != 1 or upper < 0 or lower < 0:
        return None
    shorter = max(0, min(lower.numerator, upper.numerator - lower.numerator))
    _refuse_above(
        float(min(shorter, 10**12)) * max(1.0, math.log2(upper.numerator + 1) - math.log2(shorter + 1) + 1.5)
    )
    return Fraction(math.comb(upper.numerator, lower.numerator))


RULES: Final[dict[str, Callable[..., Fraction | None]]] = {
    "add": _add,
    "mul": _multiply,
    "neg": lambda value: -value,
    "inv": lambda value: 1 / value,
    "pow": _power,
    "root": _signed_root,
    "factorial": _factorial,
    "double_factorial": _double_factorial,
    "binomial": _binomial,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "gcd": _whole(math.gcd),
    "lcm": _whole(math.lcm),
    "percent": lambda value: value / 100,
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
}
"""What can be computed exactly; a function returns None where its result is irrational or undefined."""
