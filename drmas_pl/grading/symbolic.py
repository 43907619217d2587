r"""Compare formulas by evaluating them at sample points with very many digits.

Place in the data flow: the last layer for formulas, reached only when exact numbers do not decide. Formulas arrive as bounded trees, never
as text, so that nothing is evaluated which ``size`` has not measured before.

Two formulas count as equal when they agree at several points to many more digits than they were written with. Simplifying with a
computer algebra system was tried and takes minutes on formulas that a model can type in a few characters, whereas sampling takes about a
millisecond. Points are drawn from the variables' names alone: positive integers for n, m, k and whatever stands in a factorial or
binomial, positive reals for all others. mpmath, the numerical engine of sympy, is imported on first use.

References:
    Schwartz, 1980, "Fast probabilistic algorithms for verification of polynomial identities", doi:10.1145/322217.322225.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any, Final

from drmas_pl.grading.evaluate import evaluate
from drmas_pl.grading.nodes import Apply, Node, free_symbols
from drmas_pl.grading.numeric import TooLarge, decimal_step, exact_value, rounds_to
from drmas_pl.grading.size import INTEGER_NAMES, LARGEST_INTEGER_SAMPLE, LARGEST_REAL_SAMPLE, magnitude

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
    """Compare formulas at sample points; one instance serves one answer and bounds its work.

    Example:
        >>> from drmas_pl.grading.latex import tokenize
        >>> from drmas_pl.grading.expression import parse_expression
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
        defined = 0
        agreed = 0
        for point in _points(reference, answer):
            wanted = evaluate(reference, point, digits)
            found = evaluate(answer, point, digits)
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
            Undecided: The reference is defined and non-zero at too few points.
        """
        digits = self._begin(reference, answer)
        first: tuple[Any, Any] | None = None
        usable = 0
        agreed = 0
        for point in _points(reference, answer):
            wanted = evaluate(reference, point, digits)
            found = evaluate(answer, point, digits)
            usable += wanted is not None and wanted != 0
            if wanted is None or found is None or wanted == found == 0:
                continue
            if 0 in (wanted, found):
                return False
            first = first or (wanted, found)
            ratio = wanted / found
            if positive and not (ratio.imag == 0 and ratio.real > 0):
                return False
            if not _close(wanted * first[1], found * first[0], digits):
                return False
            agreed += 1
            if agreed == SAMPLES:
                return True
        if usable < SAMPLES:
            raise Undecided("the reference is defined and non-zero at too few sample points")
        return False

    def _begin(self, reference: Node, answer: Node) -> int:
        """Account for one comparison and return the number of digits to evaluate."""
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise TooLarge(f"an answer may need at most {MAX_COMPARISONS} symbolic comparisons")
        if len(free_symbols(reference) | free_symbols(answer)) > MAX_VARIABLES:
            raise TooLarge(f"a formula must have at most {MAX_VARIABLES} variables")
        return GUARD_DIGITS + int(0.302 * max(magnitude(reference), magnitude(answer)))


def _points(reference: Node, answer: Node) -> list[dict[str, Fraction]]:
    """Draw sample points that depend on nothing but the names and which of them count things."""
    names = sorted(free_symbols(reference) | free_symbols(answer))
    if not names:
        return [{}]
    counting = INTEGER_NAMES | _counting(reference) | _counting(answer)
    generator = random.Random(" ".join(names))

    def draw(name: str) -> Fraction:
        if name in counting:
            return Fraction(generator.randint(2, LARGEST_INTEGER_SAMPLE))
        return Fraction(
            generator.randint(_DENOMINATOR // 3, LARGEST_REAL_SAMPLE * _DENOMINATOR), _DENOMINATOR
        )

    return [{name: draw(name) for name in names} for _ in range(ATTEMPTS)]


def _counting(node: Node) -> frozenset[str]:
    """Return the variables inside factorials, binomials and common divisors."""
    if not isinstance(node, Apply):
        return frozenset()
    if node.op in ("factorial", "double_factorial", "binomial", "gcd", "lcm"):
        return free_symbols(node)
    return frozenset().union(*map(_counting, node.args))


def _close(left: Any, right: Any, digits: int) -> bool:
    """Compare two evaluated numbers relative to their size."""
    if left == right:
        return True
    scale = max(abs(left), abs(right))
    return bool(scale < 2 * scale and abs(left - right) * 10 ** (digits - GUARD_DIGITS // 3) <= scale)


def _rounds(value: Any, reference: Node, step: Fraction) -> bool:
    """Compare a real number with a decimal reference at the reference's own precision."""
    target = exact_value(reference)
    if value is None or target is None or value.imag != 0:
        return False
    sign, mantissa, exponent, _ = value.real._mpf_
    if not mantissa and exponent:
        return False
    exact = Fraction(int(mantissa)) * Fraction(2) ** exponent
    return rounds_to(-exact if sign else exact, target, step)
