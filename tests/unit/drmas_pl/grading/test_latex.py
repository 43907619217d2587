"""Tidying notation and cutting tokens."""

import pytest

from drmas_pl.grading.latex import (
    MAX_CHARACTERS,
    MAX_DIGITS,
    MAX_TOKENS,
    Unreadable,
    is_ambiguous,
    tidy,
    tokenize,
)


@pytest.mark.parametrize(
    ("typed", "tidied"),
    [
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac 1 2", r"\frac{1}{2}"),
        (r"\frac{1}2", r"\frac{1}{2}"),
        (r"\frac1{23}", r"\frac{1}{23}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"),
        (r"\frac{\frac12}3", r"\frac{\frac{1}{2}}{3}"),
        (r"**73**", "73"),
        (r"**`73`**", "73"),
        (r"$5$", "5"),
        (r"\(5\)", "5"),
        (r"\[5\]", "5"),
        (r"\$5", r"\$5"),
        (r"11,\!111", "11111"),
        (r"11{,}111", "11111"),
        (r"11\,111", "11111"),
        ("1 000 000", "1000000"),
        ("1 000 00", "1 000 00"),
        (r"\left( 1,\, 2 \right]", "( 1, 2 ]"),
        (r"90^{\circ}", r"90\degree"),
        (r"90^\circ", r"90\degree"),
        ("90°", r"90\degree"),
        (r"x \leq 3", r"x \le 3"),
        (r"3 \cdot 4 × 5", "3 * 4 * 5"),
        ("2**3", "2^3"),
        ("x²", "x^{2}"),
        ("−1", "-1"),
        (r"\operatorname{sin} x", r"\sin x"),
        (r"\mathrm{cm}", r"\text{cm}"),
        (r"\mathbf{v}", "v"),
        (r"\mathrm{e}^2", "e ^2"),
        (r"0.1\overline{6}", r"\frac{15}{90}"),
        (r"\{ \}", r"\emptyset"),
        ("5.", "5"),
        ("= 5", "5"),
    ],
)
def test_ways_of_typing_are_mapped_to_one(typed: str, tidied: str) -> None:
    assert tidy(typed) == tidied


def test_row_separators_survive_tidying() -> None:
    assert r"1\\ 2" in tidy(r"\begin{pmatrix}1\\ 2\end{pmatrix}")


@pytest.mark.parametrize("text", ["x" * (MAX_CHARACTERS + 1), r"\frac{1", r"\frac{1}", r"\frac"])
def test_broken_or_long_text_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        tidy(text)


def cut(text: str, *, thousands: bool = True, scientific: bool = True) -> list[tuple[str, str]]:
    return [(token.kind, token.value) for token in tokenize(text, thousands=thousands, scientific=scientific)]


def test_tokens_have_kinds() -> None:
    assert cut(r"2\pi r \text{ cm}") == [("number", "2"), ("name", r"\pi"), ("letters", "r"), ("text", " cm")]
    assert cut(r"\{1\}\text{ }") == [("name", r"\{"), ("number", "1"), ("name", r"\}")]


def test_thousands_and_scientific_change_the_reading() -> None:
    assert cut("1,000") == [("number", "1000")]
    assert cut("1,000", thousands=False) == [("number", "1"), ("op", ","), ("number", "000")]
    assert cut("2e-3") == [("number", "2e-3")]
    assert cut("2e-3", scientific=False) == [("number", "2"), ("letters", "e"), ("op", "-"), ("number", "3")]
    assert cut("1e3", scientific=False) == [("number", "1e3")]
    assert is_ambiguous("12,34") == (False, False)


@pytest.mark.parametrize("text", ["?", "5 # 6", "1+" * MAX_TOKENS, "9" * (MAX_DIGITS + 1)])
def test_unknown_characters_and_excess_are_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        cut(text)
