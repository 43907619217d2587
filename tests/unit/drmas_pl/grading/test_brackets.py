"""Brackets bound where answers are cut."""

from drmas_pl.grading.brackets import partner, peel, split, top_level
from drmas_pl.grading.latex import Token, tokenize


def tokens(text: str) -> tuple[Token, ...]:
    return tokenize(text, thousands=True, scientific=True)


def values(found: object) -> str:
    return "".join(token.value for token in found)  # type: ignore[attr-defined]


def test_braces_around_everything_go() -> None:
    assert values(peel(tokens("{{5}}"))) == "5"
    assert values(peel(tokens("{5}{6}"))) == "{5}{6}"


def test_a_bracket_finds_its_partner_of_any_kind() -> None:
    assert partner(tokens("[1,2)+3")) == 4
    assert partner(tokens("((1)")) == -1


def test_only_signs_outside_brackets_count() -> None:
    assert values(top_level(tokens("P(X=2)=5"))) == "P)=5"
    assert [values(part) for part in split(tokens("(1,2),,3"), lambda token: token.value == ",")] == [
        "(1,2)",
        "3",
    ]
