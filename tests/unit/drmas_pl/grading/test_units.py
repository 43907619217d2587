"""Names of units."""

import pytest

from drmas_pl.grading.units import is_unit_word, read_multiplier, read_unit, units_agree


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("cm", "centimeter"),
        ("centimetres", "centimeter"),
        ("cm ^ { 2 }", "centimeter^2"),
        ("square feet", "foot^2"),
        ("cubic meters", "meter^3"),
        ("km/h", "kilometer/hour"),
        ("kilometers per hour", "kilometer/hour"),
        ("Dollars", "dollar"),
        ("apples", "apple"),
        ("glass", "glass"),
        ("units", "unit"),
        ("or more", None),
        ("", None),
        ("5", None),
        ("(approx)", None),
        ("one two three four five six", None),
    ],
)
def test_units_have_one_spelling(text: str, unit: str | None) -> None:
    assert read_unit(text) == unit


@pytest.mark.parametrize(
    ("reference", "answer", "agree"),
    [
        (None, None, True),
        (None, "apple", True),
        ("apple", None, False),
        ("apple", "apple", True),
        ("apple", "orange", False),
        ("degree", None, True),
        ("dollar", None, True),
        ("dollar", "cent", False),
    ],
)
def test_unit_policy(reference: str | None, answer: str | None, agree: bool) -> None:
    assert units_agree(reference, answer) is agree


def test_variables_and_number_words_are_no_units() -> None:
    assert not any(map(is_unit_word, ("x", "xy", "m", "million")))
    assert not any(
        map(read_unit, ("dozen", "at least", "squared", "tenths", "i", "e", "zorps", "square zorps"))
    )
    assert read_multiplier("Billion") == 9
    assert read_multiplier("dozen") is None
