"""Formulas as trees."""

from fractions import Fraction

from drmas_pl.grading.nodes import Apply, Number, Symbol, free_symbols, negate, subtract


def test_constants_are_no_variables() -> None:
    node = Apply(
        "add",
        (
            Symbol("x"),
            Symbol("pi"),
            Symbol("e"),
            Symbol("i"),
            Symbol("oo"),
            Number(Fraction(1)),
            Symbol("x_1"),
        ),
    )
    assert free_symbols(node) == {"x", "x_1"}


def test_subtract_adds_the_negative() -> None:
    assert subtract(Symbol("x"), Symbol("y")) == Apply("add", (Symbol("x"), negate(Symbol("y"))))


def test_equal_trees_hash_alike() -> None:
    assert len({subtract(Symbol("x"), Symbol("y")), subtract(Symbol("x"), Symbol("y"))}) == 1
