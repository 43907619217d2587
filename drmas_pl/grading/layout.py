r"""Take layout off an answer: colours, fonts, sizes, frames, plain-TeX spellings, text commands that hold formulas.

Place in the data flow: ``latex.tidy`` calls this first. Nothing here looks at what an answer means; a command goes only when readers of
the printed page would not miss it.
"""

from __future__ import annotations

import re
from typing import Final

from drmas_pl.parsing.boxed import closing_brace

_FONT: Final = "bf|it|rm|sf|tt|bfseries|itshape|rmfamily|sffamily"
_SIZE: Final = (
    "tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge"
    "|displaystyle|textstyle|scriptstyle|boldmath|limits|nolimits"
)
_RULES: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]", r"\\\\ "),
        (r"\\(?:text)?color\s*(?:\[\w+\])?\s*\{[^{}]*\}", ""),
        (rf"\\(?:{_SIZE})(?![A-Za-z])", ""),
        (r"\\\\\s*$", ""),
        (r"\\[lc]?dots[cbmi]?(?![A-Za-z])|\.\.\.", r"\\ldots "),
        (r"\\(?:pounds|textsterling|mathsterling)(?![A-Za-z])", r"\\text{ pound}"),
        (r"\\(?:euro|texteuro)(?![A-Za-z])", r"\\text{ euro}"),
        (r"\\textdollar(?![A-Za-z])", r"\\$"),
        (r"\\(?:fbox|framebox|underline|ensuremath|smash|mathstrut|mathop)(?![A-Za-z])", ""),
        (
            r"\\(?:(?:math(?:bf|it|sf|cal)|boldsymbol|bm|vec)\s*\{\s*([A-Za-z])\s*\}|(?:mathrm|text|textrm|textit)\s*\{\s*([ei])\s*\})",
            r" \1\2 ",
        ),
        (rf"\{{\s*\\(?:{_FONT})\s+([^{{}}]*)\}}", r"\\text{\1}"),
        (rf"\\(?:{_FONT})(?![A-Za-z])", r"\\text"),
        (
            r"\\(?:text(?:bf|it|rm|sf|tt|normal|up|md)|math(?:rm|bf|it|sf|tt|normal)|boldsymbol|bm|mbox|hbox)(?![A-Za-z])",
            r"\\text",
        ),
        (r"\\text(?!\s*\{)(?![A-Za-z])", ""),
        (r"(?<=\d)\\text\s*\{,\}(?=\d{3})", "{,}"),
        (r"(\\text\s*\{[^{}]*)\}\s*\\cdot\s*\\text\s*\{([^{}]*\})", r"\1 \2"),
        (r"\\text\s*\{\s*(cis|sin|cos|tan|cot|csc|ln|log|lg|exp|gcd|lcm)\s*\}", r"\\\1 "),
        (r"\\(?:sfrac|nicefrac|flatfrac|xfrac)(?![A-Za-z])", r"\\frac"),
        (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (
            r"(?<![\w})\]])\s*(?:\{\s*\})?[_^]\s*\{?\s*(\w+)\s*\}?\s*(?:\\text\s*\{\s*C\s*\}|C)\s*_\s*\{?\s*(\w+)\s*\}?",
            r" \\binom{\1}{\2}",
        ),
        (r"\\(?:wide)?hat\s*\{?\s*(?:\\([ij])math|([ijk]))(?![A-Za-z])\s*\}?", r" \1\2 "),
        (r"\\([ij])math(?![A-Za-z])", r" \1 "),
    )
)
_UNIT_FRACTION = re.compile(
    r"\\[dt]?frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}(?:\s*(\^)\s*\{?(\d)\}?)?\s*\}"
)
_UNIT_POWER = re.compile(r"\^\s*\{\s*(-?\d)\s*\}")
_TEXT = re.compile(r"\\text\s*\{")
_MATHEMATICS = re.compile(r"[\\^_{}=<>+*]")
_UNIT = re.compile(r"(?:[A-Za-z]|(?<=[A-Za-z])\^-?\d|[ /.])+")
_UNIT_MARKS = re.compile(r"\\(?:[,;:! ]|cdot(?![A-Za-z])|text\s*(?=\{))|[{}]")


def strip_layout(text: str) -> str:
    r"""Remove layout from an answer.

    Args:
        text: Content of a box, or a reference, without dollar signs.

    Returns:
        The answer with ``\text{…}`` around plain words only.

    Example:
        >>> strip_layout(r"\textcolor{blue}{5}"), strip_layout(r"\mathbf{\frac{1}{2}}"), strip_layout(r"{1 \over 2}")
        ('{5}', '{\\frac{1}{2}}', '\\frac{1 }{ 2}')
        >>> strip_layout(r"12\,\frac{\text{m}}{\text{s}}"), strip_layout(r"12\,\mathrm{m\,s^{-1}}")
        ('12\\,\\text{m/s}', '12\\,\\text{m s^-1}')
    """
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return _UNIT_FRACTION.sub(r"\\text{\1/\2\3\4}", _unwrap_texts(text))


def _unwrap_texts(text: str) -> str:
    r"""Replace text commands that hold a formula by a group, so that the formula is read."""
    parts: list[str] = []
    position = 0
    while match := _TEXT.search(text, position):
        end = closing_brace(text, match.end() - 1)
        if end is None:
            break
        content = text[match.end() : end]
        parts.append(text[position : match.start()])
        flat = " ".join(_UNIT_MARKS.sub(" ", _UNIT_POWER.sub(r"^\1", content)).split())
        if not _MATHEMATICS.search(content):
            parts.append(rf"\text{{{content}}}")
        elif _UNIT.fullmatch(flat) and re.search(r"[A-Za-z]{2}|\^-", flat):
            parts.append(rf"\text{{{flat}}}")
        else:
            parts.append("{" + _unwrap_texts(content) + "}")
        position = end + 1
    return "".join(parts) + text[position:]
