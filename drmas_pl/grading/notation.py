r"""Compare answers in notation that only math-verify reads: set algebra, and sums, integrals or limits left standing.

Place in the data flow: ``math`` comes here when ``reading`` understands one of the two sides not at all. math-verify is kept on a short
lead: whole formulas in dollar signs, no text inside, small numbers only, both orders of the arguments must agree, and its own signal
time-outs are off, since they work in main threads only.

References:
    math-verify 0.9.0 (github.com/huggingface/Math-Verify).
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from drmas_pl.grading.latex import Unreadable, tidy

MAX_CHARACTERS: Final = 300
_SETS = re.compile(r"\\(?:setminus|backslash|cap|mathbb)(?![A-Za-z])")
_CALCULUS = re.compile(r"\\(?:int|iint|oint|sum|prod|lim)(?![A-Za-z])")
_HEAVY = re.compile(
    r"\\text|\d{7,}|!|\^\s*\{?\s*[-+]?\d{3,}|\^\s*\{[^{}]*\^|\^\s*\{[^{}]*\{|\^[^{}^]{0,20}\^"
)

_INNER = r"[^()\[\]{}<>=]*(?:\{[^{}]*\}[^()\[\]{}<>=]*)*"
_SET = (
    rf"(?:[(\[]{_INNER}[)\]]|\\\{{[^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*\\\}}"
    r"|\\mathbb\s*\{[A-Z]\}(?:\s*[\^_]\s*(?:\{[^{}]*\}|[+*\d-]))?|\\emptyset)"
)
_SET_EXPRESSION = re.compile(
    rf"(?:[A-Za-z]\s*\\in\s*)?{_SET}(?:\s*(?:\\setminus|\\backslash|\\cap|\\cup|-)\s*{_SET})*"
)
_BOUND = re.compile(r"[A-Za-z]\s*(?:<|>|\\le|\\ge|\\ne)\s*[^,;=<>()\[\]]+")
_FORMULA = re.compile(r"[^,;=<>!%'`\"&?:|]+")


def is_supported(reference: str, answer: str) -> bool:
    r"""Tell whether a pair is worth handing to math-verify, and harmless.

    Either side may use set algebra, but sums, integrals and limits are compared only with their like, never worked out.

    Example:
        >>> is_supported(r"(-\infty,3)\cup(3,\infty)", r"\mathbb{R}\setminus\{3\}")
        True
        >>> is_supported("1", r"\int_0^1 2x\,dx"), is_supported("??", "7")
        (False, False)
    """
    if max(len(reference), len(answer)) > MAX_CHARACTERS or _HEAVY.search(reference) or _HEAVY.search(answer):
        return False
    try:
        sides = tidy(reference), tidy(answer)
    except Unreadable:
        return False
    works_out = [bool(_CALCULUS.search(side)) for side in sides]
    if any(works_out):
        return all(works_out) and all(_FORMULA.fullmatch(side) for side in sides)
    # math-verify reads a prefix and drops the rest, so that the whole has to be a set.
    is_set = all(_SET_EXPRESSION.fullmatch(side) or _BOUND.fullmatch(side) for side in sides)
    return is_set and any(_SETS.search(side) for side in sides)


def preload() -> None:
    """Import math-verify ahead of time, so that doing so does not count as grading.

    Example:
        >>> preload()
    """
    import math_verify  # noqa: F401


def same_notation(reference: str, answer: str) -> bool | None:
    r"""Compare two formulas with math-verify.

    Args:
        reference: Reference in LaTeX; ``is_supported`` must hold for the pair.
        answer: Answer in LaTeX.

    Returns:
        Whether they are equal in both orders of comparison; None when the reference cannot be read.

    Example:
        >>> same_notation(r"(-\infty,3)\cup(3,\infty)", r"\mathbb{R}\setminus\{3\}")
        True
    """
    from math_verify import verify

    wanted = _parse(reference)
    found = _parse(answer)
    if wanted is None:
        return None
    if found is None:
        return False
    return all(
        verify(gold, target, allow_set_relation_comp=True, timeout_seconds=None)
        for gold, target in ((wanted, found), (found, wanted))
    )


def _parse(text: str) -> Any | None:
    """Read one formula, put in dollar signs so that it is not cut down to a number inside it."""
    from math_verify import LatexExtractionConfig, parse
    from sympy import Set

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    try:
        plain = tidy(text)
    except Unreadable:
        return None
    config = LatexExtractionConfig(boxed_match_priority=-1)
    parsed = parse(
        f"${plain}$", extraction_config=[config], fallback_mode="no_fallback", parsing_timeout=None
    )
    if len(parsed) != 1:
        return None
    # Intersections and differences come unevaluated.
    return parsed[0].doit() if isinstance(parsed[0], Set) else parsed[0]
