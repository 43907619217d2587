"""Notations of their own."""

from fractions import Fraction

import pytest

from drmas_pl.grading.compare import same
from drmas_pl.grading.nodes import Number
from drmas_pl.grading.reading import read
from drmas_pl.grading.shapes import Based, Bracketed, Equation, Shape, Value, Words


def first(text: str) -> Shape:
    return read(text)[0]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("101_2", Based("101", 2)),
        ("(101)_{2}", Based("101", 2)),
        (r"101_{\text{two}}", Based("101", 2)),
        (r"\text{A5}_{16}", Based("A5", 16)),
        ("1a_{16}", Based("1A", 16)),
        ("007_8", Based("7", 8)),
        (r"42_{\text{ten}}", Value(Number(Fraction(42)))),
    ],
)
def test_bases(text: str, shape: Shape) -> None:
    assert first(text) == shape


@pytest.mark.parametrize("text", ["a_1", "x_{12}", "a1_{16}", "59_8", "1_1", "12_{37}"])
def test_names_with_an_index_are_no_numerals(text: str) -> None:
    assert not isinstance(first(text), Based)


@pytest.mark.parametrize(
    ("text", "other", "equal"),
    [
        (r"x\equiv 3\pmod 7", r"10 \pmod{7}", True),
        (r"x\equiv 3\pmod 7", r"x\equiv 3\ (\text{mod } 7)", True),
        (r"x\equiv 3\pmod 7", r"x = 3 \text{ (mod 7)}", True),
        (r"x\equiv 0,1\pmod 4", r"1,4 \pmod 4", True),
        (r"x\equiv 3\pmod 7", r"y\equiv 3\pmod 7", False),
        (r"x\equiv 3\pmod 7", r"x\equiv 3\pmod 8", False),
        (r"a\pmod n", r"a\pmod{n}", True),
        ("]1,2[", "(1,2)", True),
        (r"]1,2]\cup[3,4[", r"(1,2]\cup[3,4)", True),
        ("]1,2[", "[1,2]", False),
        (r"\mathbb{R}\setminus\{2,1\}", r"x\ne 1, x\ne 2", True),
        (r"\mathbb{R}-\{1\}", r"(-\infty,1)\cup(1,\infty)", True),
        (r"\mathbb{R}^+", "x>0", True),
        (r"\mathbb{R}_{\ge 0}", r"x\ge 0", True),
        (r"\mathbb{R}^{-}", "x<0", True),
        (r"\mathbb{R}_{\le 0}", r"x\le 0", True),
        (r"6:30\text{ p.m.}", r"\text{6:30 PM}", True),
        (r"6\text{ AM}", r"6:00\text{ a.m.}", True),
        (r"6\text{ AM}", r"6\text{ PM}", False),
        (r"\textbf{(B)}\ 12", "B", True),
        (r"\textbf{(B)}\ 12", "12", True),
        (r"\textbf{(B)}\ 12", r"\text{B. }12", True),
        (r"\textbf{(B)}\ 12", r"\textbf{(B)}\ 13", False),
        (r"\textbf{(B)}\ 12", r"\textbf{(C)}\ 12", False),
    ],
)
def test_pairs(text: str, other: str, equal: bool) -> None:
    assert any(same(left, right, None) for left in read(text) for right in read(other)) is equal
    assert any(same(left, right, None) for left in read(other) for right in read(text)) is equal


def test_irrational_points_are_left_to_others() -> None:
    assert not isinstance(first(r"\mathbb{R}\setminus\{\sqrt{2}\}"), (Bracketed, Equation, Value, Words))
