"""Recognise the unit behind a quantity, and decide whether it may be ignored.

Place in the data flow: ``shapes`` separates a formula from its unit with these functions, ``compare`` asks whether two units agree.
Units are names to be compared, never converted: one hour is not sixty minutes here.
"""

from __future__ import annotations

import re
from typing import Final

_ALIASES: Final = {
    alias: name
    for name, aliases in {
        "millimeter": "mm millimetre", "centimeter": "cm cms centimetre", "meter": "m metre", "kilometer": "km kms kilometre",
        "inch": "in inches", "foot": "ft feet", "yard": "yd yds", "mile": "mi", "second": "s sec secs", "minute": "min mins",
        "hour": "h hr hrs", "gram": "g", "kilogram": "kg kgs", "liter": "l litre", "milliliter": "ml millilitre", "pound": "lb lbs",
        "ounce": "oz", "degree": "deg", "dollar": "usd bucks", "square": "sq", "joule": "J", "newton": "N", "watt": "W", "volt": "V",
        "/": "per",
    }.items()
    for alias in (name, *aliases.split())
}  # fmt: skip
_SOFT: Final = frozenset({"degree", "dollar"})
_FUNCTION_WORDS: Final = """
    or and not no nor than then if is are be at least most more less fewer about approximately around roughly between other either both
    times to the a an of for with without only exactly nearly almost over under up all any none some undefined infinity positive negative
    dozen tens half third quarter mod where when real
"""
_NOT_UNITS: Final = frozenset(_FUNCTION_WORDS.split())
_MULTIPLIERS: Final = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_WORD = re.compile(r"[^\W\d_]+|/|\^\d")
_POWER = re.compile(r"\s*\^\s*(?:\{\s*)?(-?)\s*(\d)(?:\s*\})?")
_INVERSE = re.compile(r"([^\W\d_]+)\^-(\d)")


def is_unit_word(letters: str) -> bool:
    """Tell whether bare letters behind a number are a unit rather than variables.

    Example:
        >>> is_unit_word("cm"), is_unit_word("apples"), is_unit_word("xy"), is_unit_word("or")
        (True, True, False, False)
    """
    if letters.lower() in _NOT_UNITS or letters.lower() in _MULTIPLIERS:
        return False
    return len(letters) >= 4 or (len(letters) > 1 and letters.lower() in _ALIASES)


def read_unit(text: str) -> str | None:
    """Bring a unit to one spelling.

    Args:
        text: What stands behind a formula, e.g. ``cm^2`` or ``miles per hour``.

    Returns:
        A canonical name, or None when the text is no plain unit, so that it must not be ignored.

    Example:
        >>> read_unit(" cm^2"), read_unit("square centimeters"), read_unit("m s^-1"), read_unit("or more")
        ('centimeter^2', 'centimeter^2', 'meter/second', None)
    """
    text = _INVERSE.sub(r"/ \1^\2", _POWER.sub(r"^\1\2", text)).replace("^1", "")
    words = _WORD.findall(text)
    if not words or len(words) > 5 or re.sub(r"[\s.]", "", "".join(words)) != re.sub(r"[\s.]", "", text):
        return None
    if any(word.lower() in _NOT_UNITS for word in words):
        return None
    names = [_canonical(word) for word in words]
    for area, power in (("square", "^2"), ("cubic", "^3")):
        if names[0] == area and len(names) > 1:
            names[:2] = [names[1] + power]
    return " ".join(names).replace(" ^", "^").replace(" / ", "/")


def read_multiplier(text: str) -> int | None:
    """Return the power of ten that a number word stands for, or None.

    Example:
        >>> read_multiplier(" million ")
        6
    """
    return _MULTIPLIERS.get(text.strip().lower())


def units_agree(reference: str | None, answer: str | None) -> bool:
    """Apply the unit policy.

    Any plain unit is ignored when the reference has none. A unit of the reference must be repeated, except degrees and dollars.

    Example:
        >>> units_agree(None, "centimeter"), units_agree("minute", "hour"), units_agree("minute", None), units_agree("degree", None)
        (True, False, False, True)
    """
    return reference is None or reference == answer or (answer is None and reference in _SOFT)


def _canonical(word: str) -> str:
    """Map a spelling, a plural or an abbreviation to one name."""
    if word.startswith("^"):
        return word
    for form in (word, word.lower(), word.lower().removesuffix("s")):
        if form in _ALIASES:
            return _ALIASES[form]
    lower = word.lower()
    return lower.removesuffix("s") if len(lower) > 3 and not lower.endswith("ss") else lower
