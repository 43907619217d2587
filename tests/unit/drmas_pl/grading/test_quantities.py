"""Words, and formulas with units."""

import pytest

from drmas_pl.grading.latex import Token, Unreadable, tidy, tokenize
from drmas_pl.grading.numeric import exact_value
from drmas_pl.grading.quantities import read_quantity, read_words
from drmas_pl.grading.shapes import Value, Words


def tokens(text: str) -> tuple[Token, ...]:
    return tokenize(tidy(text), thousands=True, scientific=True)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"5\text{ cm}", 5, "centimeter"),
        ("5 cm^2", 5, "centimeter^2"),
        ("60 km/h", 60, "kilometer/hour"),
        ("12 apples", 12, "apple"),
        (r"\$18", 18, "dollar"),
        (r"\$18\text{ dollars}", 18, "dollar"),
        (r"-45^\circ", -45, "degree"),
        (r"25^\circ C", 25, "celsius"),
        (r"25^\circ\text{F}", 25, "fahrenheit"),
        ("5 million", 5_000_000, None),
        (r"5\text{ million dollars}", 5_000_000, "dollar"),
        (r"5\text{ thousand}", 5_000, None),
        ("5 million dollars", 5_000_000, "dollar"),
        ("50 percent", 0.5, None),
        (r"\frac{1}{2}\text{ hours}", 0.5, "hour"),
        ("7", 7, None),
    ],
)
def test_quantities(text: str, value: float, unit: str | None) -> None:
    quantity = read_quantity(tokens(text))
    assert isinstance(quantity, Value)
    assert exact_value(quantity.node) == value
    assert quantity.unit == unit


def test_words_with_digits_stay_words() -> None:
    assert read_quantity(tokens("Route 66")) == Words("route 66")
    assert read_quantity(tokens("at most 5")) == Words("at most 5")


@pytest.mark.parametrize(
    "text", [r"90^\circ\text{ cm}", r"\$5\text{ cents} ^", r"5 \text{or more} ^2", "5 5"]
)
def test_other_mixtures_are_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        read_quantity(tokens(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [("New York", "new york"), (r"\text{Even}", "even"), ("O'Neal", "o neal"), ("well-known", "well known")],
)
def test_words(text: str, words: str) -> None:
    read = read_words(tokens(text))
    assert read is not None
    assert read.text == words


@pytest.mark.parametrize("text", ["x", "x y", "pi", "sin x", "2", "x+y", ""])
def test_symbols_and_formulas_are_no_words(text: str) -> None:
    assert read_words(tokens(text)) is None


def test_a_run_of_letters_is_also_a_product() -> None:
    both = read_words(tokens("AB"))
    assert both is not None
    assert both.node is not None
