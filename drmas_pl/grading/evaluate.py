"""Evaluate formulas numerically, to any number of digits.

Place in the data flow: ``symbolic`` picks points and digits, this module computes. Every call has its own mpmath context, so that threads
do not share a precision. Formulas must have passed ``size.magnitude``, which bounds every intermediate number.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from drmas_pl.grading.nodes import Node, Number, Symbol
from drmas_pl.grading.numeric import RULES
from drmas_pl.grading.size import magnitude

_MAX_COUNT: Final = 5_000
_FUNCTIONS: Final = {
    **{name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp")},
    **{
        f"arc{name}": f"a{name}"
        for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")
    },
    **{"ln": "log", "log": "log"},
}


class _Undefined(ArithmeticError):
    """The formula has no value at this point."""


def evaluate(node: Node, point: Mapping[str, Fraction], digits: int) -> Any | None:
    """Evaluate a formula at a point.

    Args:
        node: A formula that ``size.magnitude`` accepts.
        point: A value for every variable.
        digits: Digits that must be right; parts smaller than ``10 ** -digits`` come back as exact zeros.

    Returns:
        An mpmath number; None where the formula is undefined.

    Raises:
        TooLarge: A factorial or binomial is.

    Example:
        >>> from drmas_pl.grading.nodes import Apply
        >>> round(float(evaluate(Symbol("pi"), {}, 20)), 4)
        3.1416
        >>> evaluate(Apply("inv", (Number(Fraction(0)),)), {}, 20) is None
        True
    """
    import mpmath

    context = mpmath.MPContext()
    context.dps = digits + int(0.302 * magnitude(node)) + 20
    try:
        value = _Evaluator(context, point, digits).visit(node)
    except (_Undefined, ZeroDivisionError, ValueError, OverflowError):
        return None
    return None if context.isnan(value) else value


class _Evaluator:
    """Walk a tree within one context and one point."""

    def __init__(self, context: Any, point: Mapping[str, Fraction], digits: int) -> None:
        self._context = context
        self._point = point
        self._noise = context.mpf(10) ** -digits

    def visit(self, node: Node) -> Any:
        """Return the value of a node."""
        if isinstance(node, Number):
            return self._rational(node.value)
        if isinstance(node, Symbol):
            return self._symbol(node.name)
        return self._settle(self._apply(node.op, [self.visit(argument) for argument in node.args]))

    def _rational(self, value: Fraction) -> Any:
        """Convert an exact number."""
        return self._context.mpf(value.numerator) / value.denominator

    def _symbol(self, name: str) -> Any:
        """Look up a variable or a constant."""
        if name in self._point:
            return self._rational(self._point[name])
        context = self._context
        constants = {
            "pi": lambda: +context.pi,
            "e": lambda: +context.e,
            "i": lambda: context.mpc(0, 1),
            "oo": lambda: context.inf,
        }
        return constants[name]()

    def _apply(self, op: str, values: list[Any]) -> Any:  # noqa: C901, PLR0912 - one line per operation
        """Carry out one operation."""
        context = self._context
        first = values[0]
        match op:
            case "add":
                return context.fsum(values)
            case "mul":
                return context.fprod(values)
            case "neg":
                return -first
            case "inv":
                return 1 / first
            case "pow":
                return context.power(first, values[1])
            case "root":
                return self._root(first, values[1])
            case "percent":
                return first / 100
            case "degree":
                return first * context.pi / 180
            case "abs":
                return abs(first)
            case "floor":
                return self._floor(first)
            case "ceil":
                return -self._floor(-first)
            case "factorial" | "double_factorial" | "binomial" | "gcd" | "lcm":
                return self._count(op, values)
            case "max" | "min":
                return self._extreme(op, values)
        if op in ("ln", "log") and 0 in values:
            raise _Undefined
        value = getattr(context, _FUNCTIONS[op])(first)
        return value / context.log(values[1]) if len(values) > 1 else value

    def _settle(self, value: Any) -> Any:
        """Turn what is left of a cancellation into an exact zero, before a root or a pole can blow it up."""
        real, imaginary = (
            self._context.mpf(0) if abs(part) < self._noise else part for part in (value.real, value.imag)
        )
        return self._context.mpc(real, imaginary) if imaginary else real

    def _root(self, radicand: Any, index: Any) -> Any:
        """Take the real root where the index is odd, otherwise the principal one."""
        if radicand.imag == 0 and radicand.real < 0 and index.imag == 0 and index.real % 2 == 1:
            return -self._context.power(-radicand.real, 1 / index.real)
        return self._context.power(radicand, 1 / index)

    def _floor(self, value: Any) -> Any:
        """Round down, not falling for a value that misses an integer by rounding alone."""
        if value.imag != 0:
            raise _Undefined
        return self._integer(value.real) or self._context.floor(value.real)

    def _extreme(self, op: str, values: list[Any]) -> Any:
        """Return the largest or the smallest of real numbers."""
        if any(value.imag != 0 for value in values):
            raise _Undefined
        return max(value.real for value in values) if op == "max" else min(value.real for value in values)

    def _integer(self, value: Any) -> Any | None:
        """Return the integer that a number is up to rounding, if any."""
        nearest = self._context.nint(value)
        return nearest if abs(value - nearest) < self._noise else None

    def _count(self, op: str, values: list[Any]) -> Any:
        """Form a factorial or binomial of natural numbers; others are undefined."""
        integers = [self._integer(value.real) if value.imag == 0 else None for value in values]
        counts = [
            Fraction(int(integer))
            for integer in integers
            if integer is not None and 0 <= integer <= _MAX_COUNT
        ]
        result = RULES[op](*counts) if len(counts) == len(values) else None
        if result is None:
            raise _Undefined
        return self._rational(result)
