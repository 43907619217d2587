"""One set of numbers has one form."""

import pytest

from drmas_pl.grading.intervals import REALS, gaps, overlap, without_points
from drmas_pl.grading.nodes import Symbol
from drmas_pl.grading.reading import read


def first(text: str) -> object:
    return read(text)[0]


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (("x>1", "x<3"), "1<x<3"),
        (("x<3", r"x\ge 1"), r"1\le x<3"),
        ((r"x\le 3", r"x\ge 1/2"), r"1/2\le x\le 3"),
    ],
)
def test_half_lines_that_overlap_are_one_interval(texts: tuple[str, str], whole: str) -> None:
    found, wanted = overlap([read(text)[0] for text in texts]), read(whole)[0]
    assert (found.opener, found.closer, found.items) == (wanted.opener, wanted.closer, wanted.items)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "texts",
    [
        ("x>3", "x<1"),
        ("x>1", "y<3"),
        ("x>1", "x>3"),
        ("x>1",),
        ("x>a", "x<b"),
        ("x>1", "x<9^{9^9}"),
        ("1", "2"),
    ],
)
def test_other_pairs_are_none(texts: tuple[str, ...]) -> None:
    assert overlap([read(text)[0] for text in texts]) is None


def test_points_are_taken_out_of_the_line() -> None:
    found = without_points([read(text)[0] for text in (r"x\ne 3", r"2x\ne 2")])
    assert found is not None
    assert len(found.items) == 3
    assert without_points([read(r"x\ne 3")[0], read(r"y\ne 3")[0]]) is None
    assert without_points([read(r"x^2\ne 3")[0]]) is None
    assert without_points([read("x<3")[0]]) is None


def test_without_points_the_line_is_whole() -> None:
    assert gaps([]).items == (REALS,)
    assert len(gaps([Symbol("pi")], "x").items) == 2
