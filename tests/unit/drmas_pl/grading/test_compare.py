"""Structure decides before formulas are evaluated."""

import pytest

from drmas_pl.grading.compare import NeedsSymbolic, same, sized
from drmas_pl.grading.nodes import Node
from drmas_pl.grading.numeric import TooLarge
from drmas_pl.grading.reading import read


class Recorder:
    """A symbolic layer that answers as told and counts."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.signs: list[bool | None] = []

    def equal(self, reference: Node, answer: Node) -> bool:
        self.signs.append(None)
        return self.answer

    def proportional(self, reference: Node, answer: Node, *, positive: bool) -> bool:
        self.signs.append(positive)
        return self.answer


def compare(reference: str, answer: str, layer: Recorder | None = None) -> bool:
    return same(read(reference)[0], read(answer)[0], layer)


@pytest.mark.parametrize(
    ("reference", "answer", "equal"),
    [
        ("1/2", "0.5", True),
        ("(1,2)", "(1,2.0)", True),
        ("(1,2)", "[1,2]", False),
        ("(1,2)", "(1,2,3)", False),
        (r"\{1,2\}", "2,1", True),
        (r"\{1,1,2\}", r"\{1,2\}", True),
        ("1,1,2", "1,2", False),
        ("1,1,2", "1,2,2", False),
        ("x=5", "5", True),
        ("5", "x=4=5", False),
        ("x=5", "x=5", True),
        ("x<3", r"(-\infty,3)", True),
        ("x<3", "y<3", False),
        ("yes", "YES", True),
        ("yes", "5", False),
        ("52_8", "052_8", True),
        ("52_8", "42", False),
        ("(1,2)", "5", False),
        ("x", "y", False),
    ],
)
def test_cheap_decisions_need_no_symbolic_layer(reference: str, answer: str, equal: bool) -> None:
    assert compare(reference, answer) is equal
    assert compare(answer, reference) is equal


@pytest.mark.parametrize(
    ("reference", "answer"),
    [("x+1", "1+x"), (r"\sqrt{8}", r"2\sqrt{2}"), ("2x=4", "x-2=0"), ("(x,1)", "(x+0,1)")],
)
def test_other_formulas_are_left_to_the_symbolic_layer(reference: str, answer: str) -> None:
    with pytest.raises(NeedsSymbolic):
        compare(reference, answer)
    for verdict in (True, False):
        assert compare(reference, answer, Recorder(verdict)) is verdict


@pytest.mark.parametrize(
    ("reference", "answer", "positive"),
    [("2x+2y<6", "x+y<3", True), (r"x\ne 3", r"2x\ne 6", False), ("2a<6b", "a<3b", True)],
)
def test_inequalities_allow_positive_factors_only(reference: str, answer: str, positive: bool) -> None:
    recorder = Recorder(True)
    assert compare(reference, answer, recorder)
    assert recorder.signs == [positive]
    assert compare(answer, reference, recorder)


def test_relations_of_different_order_differ() -> None:
    assert not compare("x+y<3", r"x+y\le 3", Recorder(True))


def test_the_reference_alone_sets_precision_and_unit() -> None:
    assert compare("0.33", "1/3")
    assert not compare("1/3", "0.33")
    assert compare("5", "5 apples")
    assert not compare("5 apples", "5")


@pytest.mark.parametrize(
    "text", ["9^{9^9}", "(1,9^{9^9})", r"\{9^{9^9}\}", "x=9^{9^9}", "x^{9^9}<y", "1,2,x^{9^9}"]
)
def test_sized_finds_large_formulas_anywhere(text: str) -> None:
    with pytest.raises(TooLarge):
        sized(read(text)[0])
    sized(read(text.replace("9^9", "9"))[0])
