"""Names of functions and constants."""

import pytest

from drmas_pl.grading.latex import Token
from drmas_pl.grading.names import is_symbol, known_name, spell


@pytest.mark.parametrize(
    ("token", "pieces"),
    [
        (Token("letters", "xsinpi"), ["x", "sin", "pi"]),
        (Token("letters", "asinh"), ["arcsinh"]),
        (Token("letters", "max"), ["m", "a", "x"]),
        (Token("name", r"\max"), ["max"]),
        (Token("name", r"\infty"), ["oo"]),
        (Token("name", r"\alpha"), [r"\alpha"]),
        (Token("name", r"\sqrt"), [r"\sqrt"]),
        (Token("number", "5"), ["5"]),
    ],
)
def test_tokens_are_spelled_out(token: Token, pieces: list[str]) -> None:
    assert [piece.value for piece in spell(token)] == pieces


def test_units_and_words_are_no_names() -> None:
    assert known_name("sin") and known_name("pi")
    assert not known_name("min") and not known_name("no")


@pytest.mark.parametrize("command", [r"\dot", r"\hat", r"\text", r"\in", r"\begin", r"\{"])
def test_commands_that_act_on_something_are_no_variables(command: str) -> None:
    assert not is_symbol(command)
