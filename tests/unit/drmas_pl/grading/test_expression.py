"""Reading formulas."""

import pytest

from drmas_pl.grading.expression import MAX_DEPTH, parse_expression
from drmas_pl.grading.latex import Unreadable, tidy, tokenize
from drmas_pl.grading.names import known_name
from drmas_pl.grading.nodes import Node, Number, Symbol


def parse(text: str) -> Node:
    return parse_expression(tokenize(tidy(text), thousands=True, scientific=True))


def show(node: Node) -> str:
    if isinstance(node, Number):
        return str(node.value)
    if isinstance(node, Symbol):
        return node.name
    return f"{node.op}({','.join(map(show, node.args))})"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1+2-3", "add(1,2,neg(3))"),
        ("-x^2", "neg(pow(x,2))"),
        ("2^3^2", "pow(2,pow(3,2))"),
        ("2^{n-1}", "pow(2,add(n,neg(1)))"),
        ("2^-3", "pow(2,neg(3))"),
        ("a/b*c", "mul(a,inv(b),c)"),
        ("2xy", "mul(2,x,y)"),
        ("2(x+1)", "mul(2,add(x,1))"),
        ("n(n+1)/2", "mul(n,add(n,1),inv(2))"),
        (r"3\frac{1}{2}", "7/2"),
        ("1 1/2", "3/2"),
        (r"2\frac{3}{2}", "mul(2,mul(3,inv(2)))"),
        (r"\sqrt2", "root(2,2)"),
        (r"\sqrt(2)", "root(2,2)"),
        ("sqrt(2)", "root(2,2)"),
        (r"\sqrt[3]{x}", "root(x,3)"),
        (r"4\sqrt{2}", "mul(4,root(2,2))"),
        (r"\sin^2 x", "pow(sin(x),2)"),
        (r"\sin^{-1} x", "arcsin(x)"),
        (r"\sin 2x\cos x", "mul(sin(mul(2,x)),cos(x))"),
        (r"\sin|x|", "sin(abs(x))"),
        (r"\ln(2)x", "mul(ln(2),x)"),
        (r"\log_2 8", "log(8,2)"),
        (r"\log_{10} x", "log(x,10)"),
        ("exp(16)", "exp(16)"),
        ("2pi", "mul(2,pi)"),
        ("asin(1)", "arcsin(1)"),
        ("|x-1|", "abs(add(x,neg(1)))"),
        ("2|x|", "mul(2,abs(x))"),
        ("5!", "factorial(5)"),
        ("28%", "percent(28)"),
        (r"90^\circ", "degree(90)"),
        (r"\binom{5}{2}", "binomial(5,2)"),
        (r"\lfloor 2.5\rfloor", "floor(5/2)"),
        (r"\lceil x\rceil", "ceil(x)"),
        ("x_1+x_{12}", "add(x_1,x_12)"),
        (r"\alpha", r"\alpha"),
        (r"-\infty", "neg(oo)"),
        ("1.5e3", "1500"),
        (".5", "1/2"),
        ("+-+3", "neg(3)"),
        ("[2+3]*4", "mul(add(2,3),4)"),
    ],
)
def test_formulas(text: str, tree: str) -> None:
    assert show(parse(text)) == tree


def test_literals_keep_their_places() -> None:
    for text, places in {"7": None, "7.0": 1, "1.25": 2, "1.2e-3": 4, "1e3": None}.items():
        literal = parse(text)
        assert isinstance(literal, Number)
        assert literal.places == places


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2 3",
        "x 2",
        "1+",
        "(1",
        "1)",
        "(1]",
        r"\int x",
        r"\sum x",
        "f(x)",
        r"x\text{a}",
        "^2",
        "|x",
        r"\sin_2 x",
        "1e123456",
        r"\text{a}",
    ],
)
def test_everything_else_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text)


def test_nesting_is_bounded() -> None:
    parse("(" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1))
    with pytest.raises(Unreadable, match="nest"):
        parse("(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1))


def test_known_names_are_functions_and_constants() -> None:
    assert all(map(known_name, ("pi", "sin", "asin", "e", "inf")))
    assert not any(map(known_name, ("no", "x", "sinx")))
