"""Matrices, vectors, systems and functions by cases."""

import pytest

from drmas_pl.grading.reading import read
from drmas_pl.grading.shapes import Bracketed, Collection, Equation, Raw

MATRIX = r"1 & 2 \\ 3 & 4"


@pytest.mark.parametrize(
    "text",
    [
        rf"\begin{{bmatrix}}{MATRIX}\end{{bmatrix}}",
        rf"\begin{{Bmatrix}}{MATRIX}\\\end{{Bmatrix}}",
        rf"\left(\begin{{array}}{{cc}}{MATRIX}\end{{array}}\right)",
        r"\left[\begin{matrix}1 & 2 \\[3pt] 3 & 4\end{matrix}\right]",
        rf"\begin{{psmallmatrix}}{MATRIX}\end{{psmallmatrix}}",
        "[[1,2],[3,4]]",
    ],
)
def test_brackets_of_matrices_mean_the_same(text: str) -> None:
    assert read(text)[0] == read(rf"\begin{{pmatrix}}{MATRIX}\end{{pmatrix}}")[0]


def test_names_and_factors_stand_before_a_matrix() -> None:
    named = read(rf"A = 2\begin{{pmatrix}}{MATRIX}\end{{pmatrix}}")[0]
    assert isinstance(named, Equation)
    assert named.name == "A"
    assert isinstance(named.values[0], Bracketed)
    assert (
        read(rf"-\begin{{pmatrix}}{MATRIX}\end{{pmatrix}}")[0]
        != read(rf"\begin{{pmatrix}}{MATRIX}\end{{pmatrix}}")[0]
    )


def test_columns_are_coordinates_too_and_rows_are_not() -> None:
    assert Bracketed("(", ")", read("(1,2)")[0].items) in read(r"\begin{pmatrix}1\\2\end{pmatrix}")  # type: ignore[union-attr]
    assert len(read(r"\begin{pmatrix}1&2\end{pmatrix}")) == 1


@pytest.mark.parametrize("name", ["cases", "aligned", "align*", "gathered"])
def test_statements_one_below_the_other_are_a_list(name: str) -> None:
    ampersand = "&" if name.startswith("align") else ""
    assert (
        read(rf"\begin{{{name}}} x {ampersand}= 1, \\ y {ampersand}= 2 \end{{{name}}}")[0]
        == read("x=1, y=2")[0]
    )
    assert read(rf"\begin{{{name}}} x {ampersand}= 1 \end{{{name}}}")[0] == read("x=1")[0]


def test_cases_lose_their_words_and_their_order() -> None:
    plain = read(r"\begin{cases} x & x>0 \\ 0 & \text{otherwise} \end{cases}")[0]
    assert isinstance(plain, Collection)
    assert read(r"\begin{cases} x, & \text{if } x>0, \\ 0, & \text{otherwise.} \end{cases}")[0] == plain


@pytest.mark.parametrize(
    "text",
    [
        r"\begin{pmatrix}\end{pmatrix}",
        r"\begin{pmatrix}1&\end{pmatrix}",
        r"\begin{vmatrix}1&2\\3&4\end{vmatrix}",
        r"\begin{pmatrix}\begin{matrix}1\end{matrix}\end{pmatrix}",
        r"2\text{ cm}\begin{pmatrix}1\end{pmatrix}",
        r"2\begin{pmatrix}\text{no}\end{pmatrix}",
        r"2\begin{cases}x=1\\y=2\end{cases}",
        r"\begin{cases}1 & \\ 2 & x>0\end{cases}",
        r"\begin{pmatrix}1",
    ],
)
def test_other_arrays_are_not_read(text: str) -> None:
    assert isinstance(read(text)[0], Raw)
