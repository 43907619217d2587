"""Size of formulas before they are evaluated."""

import pytest

from drmas_pl.grading.expression import parse_expression
from drmas_pl.grading.latex import tidy, tokenize
from drmas_pl.grading.nodes import Node
from drmas_pl.grading.numeric import TooLarge
from drmas_pl.grading.size import MAX_SYMBOLIC_BITS, magnitude


def parse(text: str) -> Node:
    return parse_expression(tokenize(tidy(text), thousands=True, scientific=True))


@pytest.mark.parametrize("text", ["9^{9^{9}}", "9**9**9**9", "99999999!", "5^(5^(5^(5^5)))"])
def test_large_numbers_are_refused(text: str) -> None:
    with pytest.raises(TooLarge):
        magnitude(parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "((x+1)^{99})^{999}",
        "x^{9^9}",
        "n^{n^n}",
        "e^{e^{e^{9}}}",
        r"\sinh(\exp(\exp(x^2)))",
        "(x^{99})!",
        r"\sin(10^{9}i)",
    ],
)
def test_large_formulas_are_refused(text: str) -> None:
    with pytest.raises(TooLarge):
        magnitude(parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "x^{99}",
        "2^{2^n}",
        "e^{e^x}",
        "n!",
        r"\binom{2n}{n}",
        "(x+1)^{100}",
        r"\sin(10^{100})",
        r"\sin x^2",
        r"\sin\sqrt{x}",
        "x_1+x_2",
    ],
)
def test_usual_formulas_are_accepted(text: str) -> None:
    assert 0 <= magnitude(parse(text)) <= MAX_SYMBOLIC_BITS
