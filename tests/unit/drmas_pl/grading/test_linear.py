"""Formulas that are linear in a variable."""

from fractions import Fraction

import pytest

from drmas_pl.grading.expression import parse_expression
from drmas_pl.grading.latex import tokenize
from drmas_pl.grading.linear import linear_coefficients


@pytest.mark.parametrize(
    ("text", "coefficients"),
    [
        ("x", (1, 0)),
        ("7", (0, 7)),
        ("2x+1", (2, 1)),
        ("3-x", (-1, 3)),
        ("2(x-1)(3)", (6, -6)),
        (r"\frac{x}{2}+\frac{1}{3}", ("1/2", "1/3")),
        ("x-x", (0, 0)),
        ("x(x+1)", None),
        ("x^2", None),
        (r"\sqrt{2}x", None),
        ("1/x", None),
        ("x+10^{20}", None),
        ("x+9^{9^9}", None),
    ],
)
def test_coefficients(text: str, coefficients: tuple[int | str, int | str] | None) -> None:
    found = linear_coefficients(parse_expression(tokenize(text, thousands=True, scientific=True)), "x")
    assert found == (None if coefficients is None else tuple(Fraction(each) for each in coefficients))
