r"""Read answers in notations of their own.

Place in the data flow: ``reading`` offers every answer here before it cuts it into tokens, and supplies itself to read the parts. The
notations are words that lead to an answer, ordinals, numerals with a base, congruences, reversed brackets, times of day, labelled choices,
and letters with what they range over.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from drmas_pl.grading.intervals import INFINITY, gaps, interval
from drmas_pl.grading.nodes import Apply, Node, Number
from drmas_pl.grading.numeric import TooLarge, exact_value
from drmas_pl.grading.shapes import Based, Bracketed, Collection, Equation, Qualified, Shape, Value

ReadPart = Callable[[str], Shape]

_LEAD_IN = re.compile(
    r"(?:\\text\s*\{\s*)?(?:so\s+|thus,?\s+|hence,?\s+)?(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|ans|result|solution)\b\.?"
    r"(?:\s+(?:is|equals)\b)?\s*[:=]?(?P<closed>\s*\})?\s*:?\s*(?P<rest>\S.*)",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(
    r"(?:\\text\s*\{\s*(?:negative|minus)\s*\}|(?:negative|minus)\s)\s*(?P<rest>[\d.\\({A-Za-z].*)",
    re.IGNORECASE,
)
_ORDINAL = re.compile(
    r"(?P<number>\d+)\s*(?:\^\s*)?(?:\{\s*)?(?:\\text\s*\{\s*)?(?P<ending>st|nd|rd|th)(?:\s*\})*",
    re.IGNORECASE,
)
_BASE_WORDS: Final = {
    word: base
    for base, word in enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], start=2)
} | {"sixteen": 16}  # fmt: skip
_BASED = re.compile(
    r"(?:\\text\s*\{\s*)?\(?\s*([0-9A-Za-z]+)\s*\)?(?:\s*\})?\s*_\s*(?:\{\s*)?(?:\\text\s*\{\s*)?"
    rf"(\d{{1,2}}|{'|'.join(_BASE_WORDS)})(?:\s*\}})*"
)
_MODULUS = (
    r"\\pmod\s*(?:\{(?P<a>[^{}]+)\}|(?P<b>\w+))|\(?\s*(?:\\b?mod|\\text\s*\{\s*mod\s*\}|mod)(?![A-Za-z])\s*\{?(?P<c>[^{}()]+)\}?\s*\)?"
    r"|\\text\s*\{\s*\(\s*mod\s*(?P<d>\w+)\s*\)\s*\}"
)
_CONGRUENCE = re.compile(
    rf"(?:(?P<name>[A-Za-z])\s*(?:\\equiv|=|\\cong)\s*)?(?P<residue>[^()=]+?)\s*(?:{_MODULUS})"
)
_REVERSED = re.compile(r"(^|\\cup\s*|\\in\s*|=\s*)([\[\]])([^\[\]]*[,;][^\[\]]*)([\[\]])(?=\s*(?:$|\\cup))")
_PUNCTURED = re.compile(
    r"(?:([A-Za-z])\s*\\in\s*)?\\mathbb\s*\{R\}\s*(?:\\setminus|\\backslash|-)\s*\\\{([^{}]*)\\\}"
)
_HALF_LINE = re.compile(r"\\mathbb\s*\{R\}\s*[_^]\s*\{?\s*(\+|-|>\s*0|<\s*0|\\ge\s*0|\\le\s*0)\s*\}?")
_RANGE = r"(?:\\in\s*\\mathbb\s*\{[ZNQRC]\}(?:\s*[_^]\s*(?:\{[^{}]*\}|[+*\d]))?|\\text\s*\{\s*(?:is )?an? integers?\s*\})"
_WHERE = r"(?:[,;]\s*)?(?:\\text\s*\{\s*,?\s*(?:where|with|for|for all|for any|for every|for each|for some)\s*\}|\\forall|[,;(])"
_QUALIFIED = re.compile(
    rf"(?P<answer>\S.*?)\s*{_WHERE}\s*(?P<condition>[A-Za-z](?:\s*,\s*[A-Za-z])*\s*{_RANGE})\s*\)?"
    r"|(?P<plain>\S.*?)\s*(?:\\forall|\\text\s*\{\s*,?\s*for (?:all|any|every|each)\s*\})\s*[A-Za-z](?:\s*,\s*[A-Za-z])*"
)
_TIME = re.compile(
    r"(?:\\text\s*\{\s*)?(\d{1,2})(?::(\d{2}))?\s*\}?\s*(?:\\text\s*\{\s*)?([AaPp])\.?\s*[Mm]\.?\s*\}?"
)
_CHOICE = re.compile(
    r"(?:\\text\s*\{\s*\(?([A-J])\)?[.:)]?\s*\}\s*|\(([A-J])\)\s+(?!-)|([A-J])[.:)]\s+(?!-))(?![+*/^=<>,!_)(;:}]|\\(?:[lg]et?|text|cup|in)\b)(\S.*)"
)


def read_idiom(text: str, read_part: ReadPart) -> Shape | None:
    r"""Read a whole answer in one of the notations of this module.

    Args:
        text: A tidy answer.
        read_part: Reads a part of it.

    Returns:
        Its shape; None when the answer is in none of them.

    Raises:
        Unreadable: A part cannot be read.

    Example:
        >>> from drmas_pl.grading.reading import read
        >>> read_idiom("(101)_{2}", lambda part: read(part)[0])
        Based(digits='101', base=2)
        >>> read_idiom("7", lambda part: read(part)[0]) is None
        True
    """
    readers = (
        _led_in,
        _negative,
        _ordinal,
        _based,
        _congruence,
        _reversed,
        _reals,
        _time,
        _choice,
        _qualified,
    )
    for reader in readers:
        shape = reader(text, read_part)
        if shape is not None:
            return shape
    return None


def _led_in(text: str, read_part: ReadPart) -> Shape | None:
    """Read what follows "Answer:" or "the answer is"."""
    match = _LEAD_IN.fullmatch(text)
    if match is None:
        return None
    if text.startswith("\\text") and match["closed"] is None:
        return read_part(rf"\text{{{match['rest']}")
    return read_part(match["rest"])


def _negative(text: str, read_part: ReadPart) -> Shape | None:
    """Read a sign written as a word."""
    match = _NEGATIVE.fullmatch(text)
    return None if match is None else read_part(f"-{match['rest']}")


def _ordinal(text: str, _: ReadPart) -> Shape | None:
    """Read a place in an order as its number, provided that the ending belongs to it."""
    match = _ORDINAL.fullmatch(text)
    if match is None:
        return None
    number = int(match["number"])
    teens = number % 100 in (11, 12, 13)
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return Value(Number(Fraction(number))) if match["ending"].lower() == ending else None


def _based(text: str, _: ReadPart) -> Shape | None:
    """Read a numeral with its base; lower-case digits count behind a decimal digit only, since ``a_1`` is a name."""
    match = _BASED.fullmatch(text)
    if match is None:
        return None
    digits = match[1]
    base = _BASE_WORDS.get(match[2]) or int(match[2])
    if digits != digits.upper() and not (digits[0].isdigit() and base > 10):
        return None
    digits = digits.upper()
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    return Value(Number(Fraction(int(digits)))) if base == 10 else Based(digits.lstrip("0") or "0", base)


def _congruence(text: str, read_part: ReadPart) -> Shape | None:
    """Read residues and their modulus; whole residues are reduced."""
    match = _CONGRUENCE.fullmatch(text)
    if match is None:
        return None
    modulus = read_part(match["a"] or match["b"] or match["c"] or match["d"])
    residue = read_part(match["residue"])
    residues = residue.items if isinstance(residue, Collection) else (residue,)
    reduced = Collection(tuple(_reduced(each, modulus) for each in residues), braced=True)
    return Bracketed("residues", "residues", (reduced, modulus), match["name"])


def _reduced(residue: Shape, modulus: Shape) -> Shape:
    """Bring a whole residue between zero and its modulus."""
    if not isinstance(residue, Value) or not isinstance(modulus, Value):
        return residue
    found = _whole(residue.node)
    divisor = _whole(modulus.node)
    return Value(Number(Fraction(found % divisor))) if found is not None and divisor else residue


def _whole(node: Node) -> int | None:
    """Evaluate a whole number."""
    try:
        value = exact_value(node)
    except TooLarge:
        return None
    return value.numerator if value is not None and value.denominator == 1 else None


def _reversed(text: str, read_part: ReadPart) -> Shape | None:
    """Read ``]a, b[``, which is how some countries write open ends."""
    turned = _REVERSED.sub(
        lambda match: f"{match[1]}{'(['[match[2] == '[']}{match[3]}{'])'[match[4] == '[']}", text
    )
    return None if turned == text else read_part(turned)


def _reals(text: str, read_part: ReadPart) -> Shape | None:
    """Read the real numbers without some points, and the positive or negative ones."""
    if match := _PUNCTURED.fullmatch(text):
        points = read_part(match[2])
        nodes = [
            item.node
            for item in (points.items if isinstance(points, Collection) else (points,))
            if isinstance(item, Value)
        ]
        values = [None if (value := _rational(node)) is None else (value, node) for node in nodes]
        if None in values or not values:
            return None
        return gaps(
            [Number(value) for value in sorted({pair[0] for pair in values if pair is not None})], match[1]
        )
    if match := _HALF_LINE.fullmatch(text):
        sign = match[1][0]
        bracket = "[" if "e" in match[1] else "("
        if sign in "+>" or match[1].startswith(r"\ge"):
            return interval(bracket, ")", (Value(Number(Fraction(0))), Value(INFINITY)))
        return interval(
            "(",
            "]" if bracket == "[" else ")",
            (Value(Apply("neg", (INFINITY,))), Value(Number(Fraction(0)))),
        )
    return None


def _rational(node: Node) -> Fraction | None:
    """Evaluate a number that is not too large."""
    try:
        return exact_value(node)
    except TooLarge:
        return None


def _time(text: str, _: ReadPart) -> Shape | None:
    """Read a time with its half of the day."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hour, minutes, half = match.groups()
    parts = (Value(Number(Fraction(int(part)))) for part in (hour, minutes or "0"))
    return Bracketed("time", "time", tuple(parts), f"{half.lower()}m")


def _choice(text: str, read_part: ReadPart) -> Shape | None:
    """Read a choice with its letter and what it says."""
    match = _CHOICE.fullmatch(text)
    if match is None:
        return None
    return Equation(f"({match[1] or match[2] or match[3]})", (read_part(match[4]),))


def _qualified(text: str, read_part: ReadPart) -> Shape | None:
    """Read an answer that says what its letters range over."""
    match = _QUALIFIED.fullmatch(text)
    if match is None:
        return None
    if match["plain"]:
        return read_part(match["plain"])
    return Qualified(read_part(match["answer"]), "".join(match["condition"].split()))
