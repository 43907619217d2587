r"""Tidy the notation of an answer and cut it into tokens.

Place in the data flow: the content of a box, or a reference, comes in as typed; ``drmas_pl.grading.shapes`` reads the tokens. Nothing
here decides what an answer means; different ways of *typing* the same thing are mapped to one.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, cast

from drmas_pl.grading.decimals import repeating_decimals
from drmas_pl.grading.layout import strip_layout
from drmas_pl.parsing.boxed import closing_brace

MAX_CHARACTERS: Final = 2_000
MAX_TOKENS: Final = 500
MAX_DIGITS: Final = 4_000

Kind = Literal["number", "name", "letters", "text", "op"]


class Unreadable(ValueError):
    """The text is not in the notation that this reader knows."""


class Token(NamedTuple):
    """One piece of an answer.

    Attributes:
        kind: ``number`` literal, ``name`` of a command, run of ``letters``, ``text`` from a text command, or ``op`` for any sign.
        value: The characters; commands keep their backslash, text commands keep only their content.
    """

    kind: Kind
    value: str


_GREEK: Final = "alpha beta gamma delta epsilon theta lambda mu sigma phi omega Delta Omega"
_VULGAR: Final = "12 13 23 14 34 15 25 35 45 16 56 18 38 58 78"
_UNICODE: Final = str.maketrans(
    {
        **dict.fromkeys("−–—‐‑", "-"),
        **dict.fromkeys("×·⋅∗", "*"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003", " "),
        **dict.fromkeys("°º˚", r"\degree "),
        **{
            "÷": "/", "⁄": "/", "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": "=",
            "±": r"\pm ", "∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "’": "'", "⟨": "(", "⟩": ")",
            "∩": r"\cap ", "∖": r"\setminus ", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "∛": r"\sqrt[3]",
            "…": r"\ldots ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "≡": r"\equiv ", "∠": r"\angle ",
            "′": "'", "€": r"\text{ euro}", "£": r"\text{ pound}", "，": ",", "（": "(", "）": ")", "％": "%",
        },
        **{char: rf"\frac{{{pair[0]}}}{{{pair[1]}}}" for char, pair in zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", _VULGAR.split(), strict=True)},
        **{char: rf"\{name} " for char, name in zip("αβγδεθλμσφωΔΩ", _GREEK.split(), strict=True)},
    }
)  # fmt: skip

_REWRITES: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right)\s*\.", ""),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])", ""),
        (r"(?<=\d)(?:\{,\}|,\\!|\\,|\\ )\s*(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\(?:[!,;:> ]|q?quad(?![A-Za-z]))|~", " "),
        (r"\\operatorname\*?\s*\{\s*([A-Za-z]+)\s*\}", r"\\\1 "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"(?:\{\s*\})?\^\s*(?:\\(?:circ|degree)(?![A-Za-z])|\{\s*\\(?:circ|degree)\s*\})", r"\\degree "),
        (r"\\%", "%"),
        (r"\\\||\\[lr]?(?:vert|Vert)(?![A-Za-z])|\\v?mid(?![A-Za-z])", "|"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\leq(?:slant)?(?![A-Za-z])|<=", r"\\le "),
        (r"\\geq(?:slant)?(?![A-Za-z])|>=", r"\\ge "),
        (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
        (r"\\approx(?![A-Za-z])|==", "="),
        (r"\\(?:cdot|times|ast)(?![A-Za-z])", "*"),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\*\*", "^"),
        (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\mathbb\s*R(?![A-Za-z])", r"\\mathbb{R}"),
    )
)
_RAISED: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ", "0123456789+-()nx")
_LOWERED: Final = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n")
_RAISED_RUN = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ]+")
_LOWERED_RUN = re.compile(r"[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+")
_MARKDOWN = re.compile(r"(\*\*|__|\*|`)(.*\S)\1", re.DOTALL)
_DELIMITERS = re.compile(r"(?<!\\)(?:\$|\\[()\[\]])")
_TWO_ARGUMENTS = re.compile(r"\\(?:frac|binom)(?![A-Za-z])\s*")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.])(?<!\d )\d{1,3}(?: \d{3})+(?! ?\d)")


def tidy(text: str) -> str:
    r"""Map different ways of typing an answer to one notation.

    Args:
        text: Content of a box, or a reference; dollar signs and a surrounding bold mark are allowed.

    Returns:
        The same answer without layout commands, with ``^`` for powers and braces around the arguments of ``\frac``.

    Raises:
        Unreadable: The text is longer than ``MAX_CHARACTERS``.

    Example:
        >>> tidy(r"$\dfrac12$"), tidy(r"**73**"), tidy(r"\left(1,\,2\right)")
        ('\\frac{1}{2}', '73', '(1, 2)')
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"answer must have at most {MAX_CHARACTERS} characters, got {len(text)}")
    plain = " ".join(text.split())
    while match := _MARKDOWN.fullmatch(plain):
        plain = match[2].strip()
    plain = _RAISED_RUN.sub(lambda run: f"^{{{run[0].translate(_RAISED)}}}", plain)
    plain = _LOWERED_RUN.sub(lambda run: f"_{{{run[0].translate(_LOWERED)}}}", plain)
    plain = strip_layout(_DELIMITERS.sub("", plain.translate(_UNICODE)))
    for pattern, replacement in _REWRITES:
        plain = pattern.sub(replacement, plain)
    plain = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), plain)
    plain = repeating_decimals(plain)
    plain = _brace_arguments(" ".join(plain.split())).rstrip(" .,;").removeprefix("=").strip()
    while plain.startswith("{") and closing_brace(plain, 0) == len(plain) - 1:
        plain = plain[1:-1].strip()
    return plain


def tokenize(text: str, *, thousands: bool, scientific: bool) -> tuple[Token, ...]:
    r"""Cut a tidy answer into tokens.

    Args:
        text: What ``tidy`` returned.
        thousands: Read ``1,000`` as one number instead of a list.
        scientific: Read ``2e-3`` as a number instead of a term with Euler's constant.

    Returns:
        At most ``MAX_TOKENS`` tokens.

    Raises:
        Unreadable: A character is unknown, a literal or the answer is too long.

    Example:
        >>> [token.value for token in tokenize(r"\frac{1}{2}x", thousands=True, scientific=True)]
        ['\\frac', '{', '1', '}', '{', '2', '}', 'x']
    """
    pattern = _TOKENS[thousands, scientific]
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None or len(tokens) >= MAX_TOKENS:
            raise Unreadable(f"cannot read {text[position : position + 20]!r}")
        position = match.end()
        kind = match.lastgroup
        if kind == "number":
            tokens.append(Token("number", match[0].replace(",", "")))
        elif kind == "text" and (content := match[0][match[0].index("{") + 1 : -1]).strip():
            tokens.append(Token("text", content))
        elif kind in ("name", "letters", "op"):
            tokens.append(Token(cast(Kind, kind), match[0]))
    if any(len(token.value) > MAX_DIGITS for token in tokens):
        raise Unreadable(f"a literal must have at most {MAX_DIGITS} digits")
    return tuple(tokens)


def is_ambiguous(text: str) -> tuple[bool, bool]:
    """Tell whether a tidy answer reads differently with ``thousands`` and with ``scientific`` turned off.

    Example:
        >>> is_ambiguous("1,000"), is_ambiguous("2e-3"), is_ambiguous("1, 000")
        ((True, False), (False, True), (False, False))
    """
    return re.search(_THOUSANDS, text) is not None, re.search(r"\d\s*e[+-]\d", text) is not None


_THOUSANDS: Final = r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])"


def _token_pattern(thousands: bool, scientific: bool) -> re.Pattern[str]:
    """Build the pattern of one token, or of the white space between tokens."""
    exponent = r"(?:E[+-]?\d+|e\d+(?![A-Za-z]))" if not scientific else r"[eE][+-]?\d+(?![A-Za-z])"
    grouped = rf"{_THOUSANDS}(?:\.\d+)?|" if thousands else ""
    return re.compile(
        rf"""(?P<number>(?:{grouped}\d+(?:\.\d*)?|\.\d+)(?:{exponent})?)
        |(?P<text>\\text\s*\{{[^{{}}]*\}})
        |(?P<name>\\(?:[A-Za-z]+|[{{}}|\\$]))
        |(?P<letters>[^\W\d_]+)
        |(?P<op>!!|[-+*/^!_=<>()\[\]{{}},;:|%&'.])
        |\s+""",
        re.VERBOSE,
    )


_TOKENS: Final = {
    (thousands, scientific): _token_pattern(thousands, scientific)
    for thousands in (True, False)
    for scientific in (True, False)
}


def _brace_arguments(text: str) -> str:
    r"""Put braces around the two arguments of ``\frac`` and ``\binom``, which LaTeX lets one omit: ``\frac12``."""
    parts: list[str] = []
    position = 0
    while match := _TWO_ARGUMENTS.search(text, position):
        parts.append(text[position : match.end()].rstrip())
        position = match.end()
        for _ in range(2):
            position, argument = _next_argument(text, position)
            parts.append("{" + argument + "}")
    return "".join(parts) + text[position:]


def _next_argument(text: str, position: int) -> tuple[int, str]:
    """Return where the next macro argument ends, and its content with its own arguments braced."""
    while position < len(text) and text[position] == " ":
        position += 1
    if text[position : position + 1] == "{":
        end = closing_brace(text, position)
        if end is None:
            raise Unreadable("unbalanced braces")
        return end + 1, _brace_arguments(text[position + 1 : end])
    match = re.compile(r"\\[A-Za-z]+|[^{}]").match(text, position)
    if match is None:
        raise Unreadable("a fraction lacks an argument")
    return match.end(), match[0]
