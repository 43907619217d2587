"""Equality of formulas by sampling."""

import pytest

from drmas_pl.grading.expression import parse_expression
from drmas_pl.grading.latex import tidy, tokenize
from drmas_pl.grading.nodes import Node, Symbol
from drmas_pl.grading.numeric import TooLarge
from drmas_pl.grading.symbolic import MAX_COMPARISONS, MAX_VARIABLES, Sampling, Undecided


def parse(text: str) -> Node:
    return parse_expression(tokenize(tidy(text), thousands=True, scientific=True))


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("(x+1)^2", "x^2+2x+1", True),
        ("(x+1)^2", "x^2+1", False),
        (r"\sqrt{x^2}", "x", True),
        (r"\cos(n\pi)", "(-1)^n", True),
        (r"\cos(x\pi)", "(-1)^x", False),
        ("(p+1)!", "(p+1)p!", True),
        (r"\frac{x^2-1}{x-1}", "x+1", True),
        ("x+10^{-60}", "x", False),
        (r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}", True),
        (r"e^{\pi\sqrt{163}}", "262537412640768744", False),
        (r"\sin(1000i)", r"\sin(1000i)+0", True),
        (r"\sin(99i)", r"\sin(99i)+10^{-30}", False),
        (r"\infty", r"\infty+1", True),
        (r"\infty", r"-1\cdot\infty", False),
    ],
)
def test_equal_in_both_orders(left: str, right: str, equal: bool) -> None:
    assert Sampling().equal(parse(left), parse(right)) is equal
    assert Sampling().equal(parse(right), parse(left)) is equal


@pytest.mark.parametrize(
    ("reference", "answer", "equal"),
    [
        ("3.14", r"\pi", True),
        ("3.15", r"\pi", False),
        ("-3.14", r"-\pi", True),
        ("1.0", "e^{i}", False),
        ("1.0", r"\infty", False),
        ("1.0", "x", False),
    ],
)
def test_decimal_references_set_the_precision(reference: str, answer: str, equal: bool) -> None:
    assert Sampling().equal(parse(reference), parse(answer)) is equal


def test_an_answer_that_is_undefined_everywhere_differs() -> None:
    assert not Sampling().equal(parse("5"), parse("1/0"))
    assert not Sampling().equal(parse("x"), parse(r"\frac{x}{0}"))


def test_a_reference_that_is_undefined_everywhere_decides_nothing() -> None:
    with pytest.raises(Undecided):
        Sampling().equal(parse("1/0"), parse(r"\pi"))
    with pytest.raises(Undecided):
        Sampling().proportional(parse(r"\frac{x}{0}"), parse("x"), positive=False)


@pytest.mark.parametrize(
    ("left", "right", "positive", "answer"),
    [
        ("2x+4y-3", "y+x/2-3/4", False, True),
        ("x-y", "y-x", False, True),
        ("x-y", "y-x", True, False),
        ("2x-2y", "x-y", True, True),
        ("x-2", "x-3", False, False),
        ("x^2", "x", False, False),
        ("x-x", "x", False, False),
        ("ix", "x", True, False),
    ],
)
def test_proportional(left: str, right: str, positive: bool, answer: bool) -> None:
    assert Sampling().proportional(parse(left), parse(right), positive=positive) is answer


def test_work_is_bounded() -> None:
    sampling = Sampling()
    for _ in range(MAX_COMPARISONS):
        sampling.equal(Symbol("x"), Symbol("x"))
    with pytest.raises(TooLarge, match="comparisons"):
        sampling.equal(Symbol("x"), Symbol("x"))
    many = parse("+".join(f"x_{index}" for index in range(MAX_VARIABLES + 1)))
    with pytest.raises(TooLarge, match="variables"):
        Sampling().equal(many, many)
