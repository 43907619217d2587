r"""Compare formulas with sympy, and unusual notation with math-verify.

Place in the data flow: the last layer of the grader, reached only when exact numbers do not decide; both libraries are imported on first
use. Formulas arrive as bounded trees, never as text, so that nothing is evaluated which ``numeric`` has not sized before.

Two formulas are equal when they agree at several sample points to many more digits than they were written with. Sampling decides faster
than simplifying and has no blind spots for notation; its error probability for formulas of bounded size is far below the noise of
any data set. Points are drawn from the formulas' variable names: positive integers for n, m, k and positive reals for all others.
"""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from drmas_pl.rewards.expression import Node, Number, Symbol, free_symbols
from drmas_pl.rewards.numeric import (
    INTEGER_NAMES,
    LARGEST_INTEGER_SAMPLE,
    LARGEST_REAL_SAMPLE,
    TooLarge,
    decimal_step,
    exact_value,
    magnitude,
    rounds_to,
)

if TYPE_CHECKING:
    import sympy

GUARD_DIGITS: Final = 50
SAMPLES: Final = 4
ATTEMPTS: Final = 10
MAX_VARIABLES: Final = 12
MAX_COMPARISONS: Final = 100
_DENOMINATOR: Final = 1009
"""A prime, so that samples do not hit special values of common formulas."""


class Undecided(ArithmeticError):
    """The reference is undefined, so that nothing can be compared with it."""


class Sampling:
    """Compare formulas by evaluating them at sample points; one instance serves one answer and bounds its work.

    Example:
        >>> from drmas_pl.rewards.latex import tokenize
        >>> from drmas_pl.rewards.expression import parse_expression
        >>> left, right = (parse_expression(tokenize(text, thousands=True, scientific=True)) for text in ("(x+1)^2", "x^2+2x+1"))
        >>> Sampling().equal(left, right)
        True
    """

    def __init__(self) -> None:
        self._comparisons = 0

    def equal(self, reference: Node, answer: Node) -> bool:
        """Tell whether two formulas agree wherever both are defined; a decimal reference asks for its own precision only.

        Raises:
            TooLarge: Too many comparisons for one answer, or too many variables.
            Undecided: The reference is undefined at every sample point.
        """
        digits = self._begin(reference, answer)
        step = decimal_step(reference)
        if step is not None and not free_symbols(answer):
            return _rounds(evaluate(answer, {}, digits), reference, step)
        defined = agreed = 0
        for point in _points(free_symbols(reference) | free_symbols(answer)):
            wanted, found = evaluate(reference, point, digits), evaluate(answer, point, digits)
            defined += wanted is not None
            if wanted is None or found is None:
                continue
            if not _close(wanted, found, digits):
                return False
            agreed += 1
            if agreed == SAMPLES or not point:
                return True
        if defined == 0:
            raise Undecided("the reference is defined at no sample point")
        return False

    def proportional(self, reference: Node, answer: Node, *, positive: bool) -> bool:
        """Tell whether ``reference`` is a constant non-zero (or positive) multiple of ``answer``.

        Raises:
            TooLarge: See ``equal``.
            Undecided: The formulas are defined and non-zero at too few points.
        """
        digits = self._begin(reference, answer)
        first: tuple[Any, Any] | None = None
        agreed = 0
        for point in _points(free_symbols(reference) | free_symbols(answer)):
            wanted, found = evaluate(reference, point, digits), evaluate(answer, point, digits)
            if wanted is None or found is None or wanted == found == 0:
                continue
            if 0 in (wanted, found):
                return False
            first = first or (wanted, found)
            if positive and not (wanted / found).is_positive:
                return False
            if not _close(wanted * first[1], found * first[0], digits):
                return False
            agreed += 1
            if agreed == SAMPLES:
                return True
        raise Undecided("formulas are defined at too few sample points")

    def _begin(self, reference: Node, answer: Node) -> int:
        """Account for one comparison and return the number of digits to evaluate."""
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise TooLarge(f"an answer may need at most {MAX_COMPARISONS} symbolic comparisons")
        if len(free_symbols(reference) | free_symbols(answer)) > MAX_VARIABLES:
            raise TooLarge(f"a formula must have at most {MAX_VARIABLES} variables")
        return GUARD_DIGITS + int(0.302 * max(magnitude(reference), magnitude(answer)))


def _points(names: frozenset[str]) -> list[dict[str, Fraction]]:
    """Draw sample points that depend on nothing but the names."""
    if not names:
        return [{}]
    ordered = sorted(names)
    generator = random.Random(" ".join(ordered))

    def draw(name: str) -> Fraction:
        if name in INTEGER_NAMES:
            return Fraction(generator.randint(2, LARGEST_INTEGER_SAMPLE))
        return Fraction(generator.randint(_DENOMINATOR // 3, LARGEST_REAL_SAMPLE * _DENOMINATOR), _DENOMINATOR)

    return [{name: draw(name) for name in ordered} for _ in range(ATTEMPTS)]


def evaluate(node: Node, point: dict[str, Fraction], digits: int) -> sympy.Expr | None:
    """Evaluate a formula at a point.

    Args:
        node: A formula that ``numeric.magnitude`` accepts.
        point: A value for every variable.
        digits: Significant decimal digits.

    Returns:
        A sympy number whose parts are exact zeros or right to ``digits`` digits; None where the formula is undefined.

    Example:
        >>> str(evaluate(Symbol("pi"), {}, 5))
        '3.1416'
    """
    import sympy

    value = _to_sympy(node, point)
    if value.has(sympy.nan, sympy.zoo):
        return None
    if value.is_Rational or value in (sympy.oo, -sympy.oo):
        return value
    real, imaginary = value.evalf(digits).as_real_imag()
    parts = [_settled(part) for part in (real, imaginary)]
    return None if None in parts else parts[0] + parts[1] * sympy.I


def _settled(part: sympy.Expr) -> sympy.Expr | None:
    """Return a real number, with zero for one that lost all its digits; None when it stayed a formula."""
    import sympy

    if not part.is_number or not (part.is_Rational or part.is_Float):
        return None
    if isinstance(part, sympy.Float) and (part._prec == 1 or part == 0):
        return sympy.Integer(0)
    return part


def _close(left: Any, right: Any, digits: int) -> bool:
    """Compare two evaluated numbers relative to their size."""
    import sympy

    if left == right:
        return True
    if left.is_infinite or right.is_infinite:
        return False
    scale = max(abs(left), abs(right))
    return bool(abs(left - right) <= scale * sympy.Rational(1, 10 ** (digits - GUARD_DIGITS // 3)))


def _rounds(value: Any, reference: Node, step: Fraction) -> bool:
    """Compare a real number with a decimal reference at the reference's own precision."""
    import sympy

    target = exact_value(reference)
    if value is None or target is None or not value.is_real or value.is_infinite:
        return False
    exact = sympy.Rational(value)
    return rounds_to(Fraction(int(exact.p), int(exact.q)), target, step)


def _to_sympy(node: Node, point: dict[str, Fraction]) -> Any:
    """Translate a tree, putting in the point's values on the way so that only numbers are ever formed."""
    import sympy

    if isinstance(node, Number):
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if isinstance(node, Symbol):
        if node.name in point:
            return sympy.Rational(point[node.name].numerator, point[node.name].denominator)
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}[node.name]
    return _operations()[node.op](*(_to_sympy(argument, point) for argument in node.args))


@cache
def _operations() -> dict[str, Any]:
    """Map operation names to sympy."""
    import sympy

    return {
        "add": sympy.Add, "mul": sympy.Mul, "neg": lambda x: -x, "inv": lambda x: 1 / x, "pow": sympy.Pow, "sqrt": sympy.sqrt,
        "factorial": sympy.factorial, "percent": lambda x: x / 100, "degree": lambda x: x * sympy.pi / 180,
        "binomial": sympy.binomial, "abs": sympy.Abs, "floor": sympy.floor, "ceil": sympy.ceiling,
        "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
        "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh,
        "ln": sympy.log, "log": sympy.log, "exp": sympy.exp,
    }  # fmt: skip
