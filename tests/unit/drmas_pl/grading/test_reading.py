"""What kind of thing an answer is."""

import pytest

from drmas_pl.grading.reading import read
from drmas_pl.grading.shapes import Based, Bracketed, Collection, Equation, Raw, Relation, Value, Words


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("5", Value),
        ("(5)", Value),
        ("{5}", Value),
        ("(C)", Value),
        (r"\text{(C)}", Value),
        ("2:3", Value),
        ("yes", Words),
        ("52_8", Based),
        (r"\text{A5}_{16}", Based),
        ("52_{10}", Value),
        ("59_8", Raw),
        ("A_2", Value),
        ("(1,2)", Bracketed),
        ("[1,2)", Bracketed),
        ("[5]", Bracketed),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", Bracketed),
        ("1<x<2", Bracketed),
        ("x>3", Bracketed),
        (r"\{x : x>3\}", Bracketed),
        (r"\mathbb{R}", Bracketed),
        ("x+y<3", Relation),
        (r"x\ne 3", Relation),
        (r"\{1,2\}", Collection),
        (r"\emptyset", Collection),
        ("1,2", Collection),
        ("1 or 2", Collection),
        (r"\pm 2", Collection),
        (r"(0,1)\cup(2,3)", Collection),
        ("0<x+y<1", Collection),
        ("x=5", Equation),
        ("1+1=2", Equation),
        (r"x\in(1,2)", Equation),
        ("??", Raw),
        ("", Raw),
        ("1 2", Raw),
        ("]1,2[", Bracketed),
        ("]1,2,3", Raw),
        ("x <", Raw),
        ("1<x=2", Raw),
        ("1<x>2", Raw),
        (r"\{1,2)", Raw),
        ("x" * 3000, Raw),
        ("(" * 300, Raw),
    ],
)
def test_kinds(text: str, kind: type) -> None:
    assert isinstance(read(text)[0], kind)


@pytest.mark.parametrize(
    ("text", "readings"), [("1000", 1), ("1,000", 2), ("2e-3", 2), ("1,000e-3", 4), ("12,34", 1)]
)
def test_ambiguous_notation_has_several_readings(text: str, readings: int) -> None:
    assert len(read(text)) == readings


def test_equations_know_their_names() -> None:
    names = {
        "x=5": "x",
        "5=x": "x",
        "f(x)=2x": "f(x)",
        "(x,y)=(1,2)": "(x,y)",
        "x_{12}=3": "x_12",
        "1+1=2": None,
        r"\text{Area}=5": "Area",
    }
    for text, name in names.items():
        shape = read(text)[0]
        assert isinstance(shape, Equation)
        assert shape.name == name


def test_infinite_ends_are_open() -> None:
    assert read(r"[-\infty,3]") == read(r"(-\infty,3]")


def test_unbraced_lists_are_flat_and_sets_are_not() -> None:
    flat, nested = read(r"\pm 1, \pm 2")[0], read(r"\{1\},\{2\}")[0]
    assert isinstance(flat, Collection)
    assert isinstance(nested, Collection)
    assert len(flat.items) == 4
    assert len(nested.items) == 2
