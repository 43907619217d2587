"""Recognise the unit behind a quantity, and decide whether it may be ignored.

Place in the data flow: ``shapes`` separates a formula from its unit with these functions, ``compare`` asks whether two units agree.
Units are names to be compared, never converted: one hour is not sixty minutes here. What counts as a unit is a closed list: a word that is
not on it may change the value (``7 squared``, ``7 tenths``), so it is never ignored.
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
        "electronvolt": "eV", "kiloelectronvolt": "keV", "megaelectronvolt": "MeV", "hertz": "Hz", "kilohertz": "kHz", "megahertz": "MHz",
        "kilojoule": "kJ", "kilowatt": "kW",
        "pascal": "Pa", "kilopascal": "kPa", "atmosphere": "atm", "ampere": "A amp", "milliampere": "mA", "kelvin": "K", "mole": "mol",
        "calorie": "cal", "kilocalorie": "kcal", "decibel": "dB", "kilobyte": "KB", "megabyte": "MB", "gigabyte": "GB", "cent": "cents",
        "/": "per",
    }.items()
    for alias in (name, *aliases.split())
}  # fmt: skip
_SOFT: Final = frozenset({"degree", "dollar"})
_MEASURES: Final = """
    nanometer micrometer decimeter furlong fathom acre hectare nanosecond microsecond millisecond decade day
    week fortnight month year century millennium milligram microgram tonne ton ounce stone gallon quart pint
    cup tablespoon teaspoon barrel centiliter deciliter radian degree steradian arcminute arcsecond
    revolution rotation turn hertz kilohertz megahertz gigahertz kilojoule calorie kilocalorie kilowatt
    megawatt horsepower ampere amp milliampere ohm kilovolt farad coulomb tesla weber henry kelvin pascal
    kilopascal atmosphere bar torr psi mole molar becquerel lumen lux candela decibel bit byte kilobyte
    megabyte gigabyte terabyte pixel mph kph knot rpm erg dyne celsius fahrenheit cent dime nickel penny
    euro pound pence yen yuan rupee peso franc ruble won shilling cubic unit
"""
_COUNTED: Final = """
    adult animal answer apple arrangement artist athlete baby bag ball balloon banana band basket bead bean
    bear bee bike bird block boat book bookmark bottle box boy bracelet branch brick brother bucket bus bush
    button cake calf camel can candle candy car card carrot carton case cat chair character cherry chicken
    child choice chocolate choir circle city class classmate client coat code codeword coin color colour
    column combination committee computer cone cookie corner course cousin cow crate crayon cupcake customer
    cycle dancer deer desk diagonal digit dinner dish distribution divisor doctor dog doll donut doughnut
    dress duck edge egg element elephant employee engine envelope error event face factor family farmer
    father fish flag flight floor flower folder fork friend frog fruit game gift girl glass goal goat graph
    grape group guest guy hand handshake hat head hen hexagon hit home horse hotel house inhabitant integer
    intersection item jar job joke kid kite kitten lake lamp lap leaf leg lemon lesson letter lily line list
    loaf lollipop lunch machine man marble match meal member minor mistake molecule monkey mother mouse move
    movie muffin nail neighbor neighbour night nickel node note notebook nut octagon onion option orange
    orchid outcome outfit package packet pack page pancake parent partition passenger path patient pattern
    pea peach pear pen pencil pentagon people permutation person petal phone photo picture piece pig pill
    pirate pizza place plane plant plate player point polygon polynomial pony position possibility potato
    present prize problem product pumpkin pupil puppy puzzle question rabbit race rectangle region ribbon
    ring road robot rock roll room root rose route row sandwich sapling scarf school seat seed sentence
    sequence sheep sheet shelf shell ship shirt shoe shop shot side sister slice snack sock soldier solution
    song soup spider sphere spoon stamp star statement step sticker stick store story strategy strawberry
    string student stone subset suitcase swimmer symbol table task taxi teacher team tennis term test ticket
    tile toe token tomato tool tower town toy train tree triangle trip truck tulip twin tyre tire value
    vehicle vertex vote voter walker watermelon way wheel window winner woman word worker worm zebra
"""
_KNOWN: Final = frozenset((*_ALIASES.values(), *_MEASURES.split(), *_COUNTED.split()))
_IRREGULAR: Final = {
    "children": "child", "men": "man", "women": "woman", "mice": "mouse", "geese": "goose", "vertices": "vertex", "leaves": "leaf",
    "loaves": "loaf", "shelves": "shelf", "calves": "calf", "scarves": "scarf", "persons": "person",
    "buses": "bus",
}  # fmt: skip
_MULTIPLIERS: Final = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_WORD = re.compile(r"[^\W\d_]+|/|\^\d")
_POWER = re.compile(r"\s*\^\s*(?:\{\s*)?(-?)\s*(\d)(?:\s*\})?")
_INVERSE = re.compile(r"([^\W\d_]+)\^-(\d)")


def is_unit_word(letters: str) -> bool:
    """Tell whether bare letters behind a number are a word rather than variables; ``read_unit`` knows whether it is a unit.

    Example:
        >>> is_unit_word("cm"), is_unit_word("apples"), is_unit_word("xy"), is_unit_word("or")
        (True, True, False, False)
    """
    if letters.lower() in _MULTIPLIERS:
        return False
    return len(letters) >= 4 or (len(letters) > 1 and _canonical(letters) in _KNOWN)


def read_unit(text: str) -> str | None:
    """Bring a unit to one spelling.

    Args:
        text: What stands behind a formula, e.g. ``cm^2`` or ``miles per hour``.

    Returns:
        A canonical name, or None when the text is no unit on the list, so that it must not be ignored.

    Example:
        >>> read_unit(" cm^2"), read_unit("square centimeters"), read_unit("m s^-1"), read_unit("squared")
        ('centimeter^2', 'centimeter^2', 'meter/second', None)
    """
    text = _INVERSE.sub(r"/ \1^\2", _POWER.sub(r"^\1\2", text)).replace("^1", "")
    words = _WORD.findall(text)
    if not words or len(words) > 5 or re.sub(r"[\s.]", "", "".join(words)) != re.sub(r"[\s.]", "", text):
        return None
    names = [_canonical(word) for word in words]
    if not all(name in _KNOWN or name.startswith("^") for name in names):
        return None
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

    Any unit on the list is ignored when the reference has none. A unit of the reference must be repeated, except degrees and dollars.

    Example:
        >>> units_agree(None, "centimeter"), units_agree("minute", "hour"), units_agree("minute", None), units_agree("degree", None)
        (True, False, False, True)
    """
    return reference is None or reference == answer or (answer is None and reference in _SOFT)


def _canonical(word: str) -> str:
    """Map a spelling, a plural or an abbreviation to one name."""
    if word.startswith("^"):
        return word
    lower = word.lower()
    for form in (word, lower, lower.removesuffix("s")):
        if form in _ALIASES:
            return _ALIASES[form]
    return _singular(lower)


def _singular(word: str) -> str:
    """Take a plural ending off where the list holds the word without it."""
    forms = (
        word,
        _IRREGULAR.get(word, ""),
        word.removesuffix("s"),
        word.removesuffix("es"),
        f"{word.removesuffix('ies')}y",
    )
    return next((form for form in forms if form in _KNOWN), word)
