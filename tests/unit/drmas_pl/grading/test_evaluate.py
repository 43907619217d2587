"""Numerical evaluation to any number of digits."""

from fractions import Fraction

import pytest

from drmas_pl.grading.evaluate import evaluate
from drmas_pl.grading.expression import parse_expression
from drmas_pl.grading.latex import tidy, tokenize
from drmas_pl.grading.nodes import Node


def parse(text: str) -> Node:
    return parse_expression(tokenize(tidy(text), thousands=True, scientific=True))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\pi", 3.141592653589793),
        ("e", 2.718281828459045),
        ("i^2", -1),
        ("e^{i\\pi}", -1),
        (r"\sin 30^\circ", 0.5),
        (r"\cos\pi", -1),
        (r"\tan\frac{\pi}{4}", 1),
        (r"\cot\frac{\pi}{4}", 1),
        (r"\sec 0", 1),
        (r"\csc\frac{\pi}{2}", 1),
        (r"\arcsin 1", 1.5707963267948966),
        (r"\arccos 1", 0),
        (r"\arctan 1", 0.7853981633974483),
        (r"\sinh 0", 0),
        (r"\cosh 0", 1),
        (r"\tanh 0", 0),
        (r"\ln e", 1),
        (r"\log_2 8", 3),
        ("exp(1)", 2.718281828459045),
        (r"\sqrt[3]{-8}", -2),
        (r"\sqrt{-4}", 2j),
        ("|3+4i|", 5),
        ("28%", 0.28),
        (r"\lfloor \log_2 8\rfloor", 3),
        (r"\lfloor -\pi\rfloor", -4),
        (r"\lceil \pi\rceil", 4),
        ("5!", 120),
        (r"\binom{5}{2}", 10),
        ("-7", -7),
        ("1/4", 0.25),
    ],
)
def test_every_operation(text: str, value: complex) -> None:
    found = evaluate(parse(text), {}, 30)
    assert found is not None
    assert complex(found) == pytest.approx(value, abs=1e-14)


@pytest.mark.parametrize(
    "text",
    [
        "1/0",
        "0^{-1}",
        "0.5!",
        "(-1)!",
        r"\binom{0.5}{2}",
        r"\lfloor i\rfloor",
        r"\infty-\infty",
        r"\cot 0",
        r"\ln 0",
        r"\log_1 2",
        r"\frac{1}{\sin\pi}",
    ],
)
def test_undefined_formulas_have_no_value(text: str) -> None:
    assert evaluate(parse(text), {}, 30) is None


def test_variables_take_the_values_of_the_point() -> None:
    assert evaluate(parse("x^2+n"), {"x": Fraction(1, 2), "n": Fraction(3)}, 30) == 3.25


def test_cancellation_leaves_an_exact_zero() -> None:
    assert evaluate(parse(r"\sqrt{6}-\sqrt{2}\sqrt{3}"), {}, 60) == 0
    assert evaluate(parse(r"10^{30}\sqrt{6}-10^{30}\sqrt{2}\sqrt{3}"), {}, 60) == 0


def test_digits_are_kept() -> None:
    tiny = evaluate(parse(r"\pi+10^{-80}-\pi"), {}, 120)
    assert tiny is not None
    assert tiny != 0
    assert float(tiny * 10**80) == pytest.approx(1)
