"""Exact arithmetic with bounded sizes."""

import ast
import operator
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drmas_pl.grading.expression import parse_expression
from drmas_pl.grading.latex import tidy, tokenize
from drmas_pl.grading.nodes import Node
from drmas_pl.grading.numeric import TooLarge, decimal_step, exact_value, rounds_to
from tests.helpers.pace import allowed

OPERATORS: dict[type, Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


def parse(text: str) -> Node:
    return parse_expression(tokenize(tidy(text), thousands=True, scientific=True))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3*4", 14),
        (r"\frac{1}{3}", Fraction(1, 3)),
        ("0.125", Fraction(1, 8)),
        ("2^{-3}", Fraction(1, 8)),
        ("4^{0.5}", 2),
        (r"\sqrt{\frac{4}{9}}", Fraction(2, 3)),
        (r"\sqrt[3]{-8}", -2),
        (r"\sqrt{0}", 0),
        ("5!", 120),
        ("28%", Fraction(7, 25)),
        (r"\binom{10}{3}", 120),
        (r"\binom{3}{10}", 0),
        ("|-5|", 5),
        (r"\lfloor -2.5\rfloor", -3),
        (r"\lceil -2.5\rceil", -2),
        ("0^0", 1),
        ("1^{9^{9}}", 1),
        ("0^{9^{9}}", 0),
        ("(-1)^{9^{9}}", -1),
        ("2^{9^9-9^9+3}", 8),
    ],
)
def test_rational_formulas_are_exact(text: str, value: Fraction) -> None:
    assert exact_value(parse(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        "x",
        r"\pi",
        r"\sqrt{2}",
        "2^{0.5}",
        "(-8)^{1/3}",
        "1/0",
        "0^{-1}",
        r"\sin 0",
        "(-1)!",
        "0.5!",
        r"\binom{0.5}{2}",
        r"\sqrt[3]{-2}",
    ],
)
def test_irrational_undefined_and_open_formulas_have_no_exact_value(text: str) -> None:
    assert exact_value(parse(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9}}",
        "9**9**9**9",
        "99999999!",
        "5^(5^(5^(5^5)))",
        "1/9^{99999}",
        r"\binom{10^9}{10^8}",
        "(9^{9999})^{99}",
        "(10^{9})!",
        "0.1^{9^9}",
    ],
)
def test_large_numbers_are_refused_before_they_are_formed(text: str) -> None:
    node = parse(text)
    started = time.process_time()
    with pytest.raises(TooLarge):
        exact_value(node)
    assert time.process_time() - started < allowed(0.5)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("7", None),
        ("7.0", Fraction(1, 10)),
        ("-1.25", Fraction(1, 100)),
        ("28.5%", Fraction(1, 1000)),
        (r"1.2\times 10^{-3}", Fraction(1, 10_000)),
        (r"1.2\times 2^{3}", None),
        ("1.5x", None),
        ("1.5+1", None),
        (r"\frac{1}{2}", None),
        (r"\sqrt{1.5}", None),
    ],
)
def test_only_decimal_literals_have_a_step(text: str, step: Fraction | None) -> None:
    assert decimal_step(parse(text)) == step


def test_rounding_goes_away_from_zero_at_halves() -> None:
    hundredth = Fraction(1, 100)
    assert rounds_to(Fraction(-335, 1000), Fraction(-34, 100), hundredth)
    assert not rounds_to(Fraction(-335, 1000), Fraction(-33, 100), hundredth)
    assert rounds_to(Fraction(0), Fraction(0), hundredth)


@st.composite
def formulas(draw: Any, depth: int = 4) -> str:
    if depth == 0 or draw(st.booleans()):
        return str(draw(st.integers(0, 99)))
    left, right = draw(formulas(depth - 1)), draw(formulas(depth - 1))
    return draw(
        st.sampled_from(
            [
                f"({left})+({right})",
                f"({left})-({right})",
                f"({left})*({right})",
                f"({left})/({right})",
                f"-({left})",
            ]
        )
    )


def oracle(node: ast.AST) -> Fraction:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](oracle(node.left), oracle(node.right))
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](oracle(node.operand))
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    return Fraction(node.value)


@given(formulas())
def test_arithmetic_agrees_with_an_independent_reader(text: str) -> None:
    try:
        expected: Fraction | None = oracle(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        expected = None
    assert exact_value(parse(text)) == expected
