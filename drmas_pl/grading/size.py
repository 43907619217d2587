"""Judge how large the numbers in a formula are, before any of them is formed.

Place in the data flow: ``compare`` refuses what is too large, ``symbolic`` and ``evaluate`` derive from the size how many digits they need.
Sizes are base-2 logarithms at the sample points that ``symbolic`` draws; the limits on those points therefore stand here.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from drmas_pl.grading.nodes import Apply, Node, Number, Symbol
from drmas_pl.grading.numeric import RULES, TooLarge, exact_value

MAX_SYMBOLIC_BITS: Final = 20_000
INTEGER_NAMES: Final = frozenset({"n", "m", "k"})
"""Variables that stand for positive integers; all others stand for positive reals."""
LARGEST_INTEGER_SAMPLE: Final = 12
LARGEST_REAL_SAMPLE: Final = 4


def magnitude(node: Node) -> float:
    """Bound the base-2 logarithm of every number met while evaluating a formula at sample points.

    Args:
        node: Any formula; variables count as at most their largest sample value.

    Returns:
        Bits, at least 0; an estimate for protection, not a proof.

    Raises:
        TooLarge: The bound exceeds ``MAX_SYMBOLIC_BITS``.

    Example:
        >>> magnitude(Apply("pow", (Number(Fraction(2)), Symbol("n")))) < 30
        True
    """
    value = exact_value(node)
    if value is not None:
        bits = math.log2(max(abs(value.numerator), value.denominator))
    elif isinstance(node, Symbol):
        bits = math.log2(LARGEST_INTEGER_SAMPLE if node.name in INTEGER_NAMES else LARGEST_REAL_SAMPLE)
    else:
        assert isinstance(node, Apply)
        bits = _combined(node.op, [magnitude(argument) for argument in node.args], node.args)
    if bits > MAX_SYMBOLIC_BITS:
        raise TooLarge(f"formula would need {bits:.3g} bits")
    return bits


def _combined(op: str, bits: list[float], args: tuple[Node, ...]) -> float:
    """Bound the result of one operation from the bounds of its arguments."""
    if op == "add":
        return max(bits) + math.log2(len(bits))
    if op in ("mul", "lcm"):
        return math.fsum(bits)
    if op == "pow":
        exponent = exact_value(args[1])
        return bits[0] * (
            _two_to(bits[1]) if exponent is None else max(1.0, float(min(abs(exponent), Fraction(10**12))))
        )
    if op in ("exp", "factorial", "double_factorial", "sinh", "cosh") or (
        op in _CIRCULAR and not _is_surely_real(args[0])
    ):
        return 1.5 * _two_to(bits[0]) * (max(bits[0], 1.0) if "factorial" in op else 1.0)
    if op == "binomial":
        return _two_to(bits[0])
    return bits[0] if op == "root" else max(bits) + 1


def _is_surely_real(node: Node) -> bool:
    """Tell whether a formula is real without looking at values; circular functions explode off the real line."""
    if isinstance(node, Symbol):
        return node.name != "i"
    if isinstance(node, Number) or exact_value(node) is not None:
        return True
    if node.op == "pow" and (exponent := exact_value(node.args[1])) is not None and exponent.denominator == 1:
        return _is_surely_real(node.args[0])
    return node.op in _REAL and all(map(_is_surely_real, node.args))


_CIRCULAR: Final = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
_REAL: Final = frozenset(RULES) - {"pow", "root", "abs"} | {"degree", "exp"}


def _two_to(bits: float) -> float:
    """Return ``2 ** bits``, saturating."""
    return math.pow(2.0, min(bits, 64.0))
