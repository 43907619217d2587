r"""Write repeating decimals as the fractions they equal.

Place in the data flow: ``latex.tidy`` calls this on an answer without layout. A bar or dots over digits, digits in brackets right behind
the point, and an ellipsis behind a visible cycle all mean repetition; an ellipsis without a cycle only says that the decimal goes on.
"""

from __future__ import annotations

import re
from typing import Final

MAX_FIXED_DIGITS: Final = 200
_OVER = r"\\(?:overline|bar|dot|overset\s*\{\s*\.\s*\})\s*(?:\{\s*(\d+)\s*\}|(\d))"
_BARRED = re.compile(rf"(\d*)\.(\d*){_OVER}(?:(\d*)\\dot\s*(?:\{{\s*(\d)\s*\}}|(\d)))?")
_BRACKETED = re.compile(r"(?<![\w.])(\d*)\.\((\d+)\)(?!\s*\^)")
_ELLIPSIS = re.compile(r"(?<![\w.])(\d*)\.(\d+)\s*(?:\\[lc]?dots(?![A-Za-z])|\.\.\.)\s*")
_CYCLE = re.compile(r"(\d{0,40}?)(?:(\d)\2\2+|(\d{2,12}?)\3+)")


def repeating_decimals(text: str) -> str:
    r"""Replace every repeating decimal by a fraction.

    Args:
        text: A tidy answer.

    Example:
        >>> repeating_decimals(r"0.1\overline{6}"), repeating_decimals(r"0.\dot{3}"), repeating_decimals("0.(27)")
        ('\\frac{15}{90}', '\\frac{3}{9}', '\\frac{27}{99}')
        >>> repeating_decimals("0.333..."), repeating_decimals("1.4142...")
        ('\\frac{3}{9}', '1.4142')
    """
    if "." not in text:
        return text
    text = _BARRED.sub(_barred, text)
    text = _BRACKETED.sub(lambda match: _fraction(match[1], "", match[2]), text)
    return _ELLIPSIS.sub(_continued, text)


def _barred(match: re.Match[str]) -> str:
    """Join the digits under a bar, or from the first dotted digit to the second."""
    whole, fixed, wide, narrow, between, *last = match.groups()
    return _fraction(whole, fixed, (wide or narrow) + (between or "") + (last[0] or last[1] or ""))


def _continued(match: re.Match[str]) -> str:
    """Repeat the shortest visible cycle; without one, keep what was written."""
    whole, digits = match.groups()
    cycle = _CYCLE.fullmatch(digits) if len(digits) <= MAX_FIXED_DIGITS else None
    return f"{whole}.{digits}" if cycle is None else _fraction(whole, cycle[1], cycle[2] or cycle[3])


def _fraction(whole: str, fixed: str, cycle: str) -> str:
    """Write ``whole.fixed`` followed by ``cycle`` again and again as a fraction."""
    scale = 10 ** len(fixed) * (10 ** len(cycle) - 1)
    value = int((whole or "0") + fixed + cycle) - int((whole or "0") + fixed)
    return rf"\frac{{{value}}}{{{scale}}}"
