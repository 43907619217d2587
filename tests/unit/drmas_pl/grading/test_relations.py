"""Statements become what they say of their subject."""

import pytest

from drmas_pl.grading.reading import read
from drmas_pl.grading.shapes import Bracketed, Collection, Equation, Raw, Relation


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x=5", "x"),
        ("5=x", "x"),
        ("x_1=5", "x_1"),
        ("f(x)=5", "f(x)"),
        ("f(2)=5", "f(2)"),
        ("f^{-1}(x)=5", "f^-1(x)"),
        ("P(X=2)=5", "P(X=2)"),
        (r"P(A\cap B)=5", r"P(A\capB)"),
        (r"\Pr(A)=5", "Pr(A)"),
        (r"\mathbb{E}[X]=5", "mathbbE[X]"),
        (r"\phi(10)=4", "phi(10)"),
        ("[ABC]=5", "[ABC]"),
        (r"\overline{AB}=5", "overlineAB"),
        ("|AB|=5", "|AB|"),
        ("AB/CD=5", "AB/CD"),
        (r"m\angle ABC=5", r"m\angleABC"),
        (r"\cos C=5", r"cosC"),
        (r"\frac{dy}{dx}=5", "fracdydx"),
        (r"\sum_{k=1}^n a_k=5", r"sum_k=1^na_k"),
        ("(x,y)=(1,2)", "(x,y)"),
        (r"(r,\theta)=(1,2)", r"(r,\theta)"),
        ("a+b=5", "a+b"),
        ("m+n=2+3=5", "m+n"),
        ("x+y=2+3=5", "x+y"),
        (r"\text{Area of }ABC=5", "AreaofABC"),
        ("x+y=5", None),
        ("x(x+1)=6", None),
        ("2+3=5", None),
        (r"\log_2 9=2", None),
        (r"\ln(5)=2", None),
        ("2k=10", None),
        ("-k=10", None),
        ("k^2=10", None),
        ("2AB=10", None),
        ("a+b=2c", None),
    ],
)
def test_what_an_equation_names(text: str, name: str | None) -> None:
    shape = read(text)[0]
    assert isinstance(shape, Equation)
    assert shape.name == name


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1<x<3", "(1,3)"),
        ("3>x>1", "(1,3)"),
        (r"x\le 3", r"(-\infty,3]"),
        ("|x|<2", "(-2,2)"),
        (r"2\ge|x|", "[-2,2]"),
        ("|x-1|<2", "(-1,3)"),
        ("1<2x+1<5", "(0,2)"),
        ("2x+6>0", r"(-3,\infty)"),
        ("-x<1", r"(-1,\infty)"),
        (r"|x|\ge 2", r"(-\infty,-2]\cup[2,\infty)"),
    ],
)
def test_inequalities_become_intervals(text: str, same: str) -> None:
    def bare(shape: object) -> object:
        if isinstance(shape, Collection):
            return frozenset(bare(item) for item in shape.items)
        assert isinstance(shape, Bracketed)
        return shape.opener, shape.closer, tuple(str(item) for item in read_values(shape))

    def read_values(shape: Bracketed) -> list[object]:
        from drmas_pl.grading.numeric import exact_value

        return [
            exact_value(item.node) if exact_value(item.node) is not None else item.node
            for item in shape.items
        ]  # type: ignore[union-attr]

    assert bare(read(text)[0]) == bare(read(same)[0])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x+y<3", Relation),
        (r"x\ne 3", Relation),
        ("0<x+y<1", Collection),
        ("x<1<x", Collection),
        ("x<", Raw),
        (r"2x\in(1,2)", Raw),
        ("1<x=2", Raw),
        ("x^2<4", Relation),
    ],
)
def test_other_statements(text: str, kind: type) -> None:
    assert isinstance(read(text)[0], kind)


def test_bounds_that_exclude_each_other_leave_nothing() -> None:
    assert read("5<2x+1<3")[0] == Collection((), braced=True)
    assert read("5<2x+1<5")[0] == Collection((), braced=True)
