"""Finding boxes in model text."""

import pytest

from drmas_pl.parsing.boxed import closing_brace, last_box


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"x \boxed{1} y \boxed{2}", "2"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{a}{b}", "a"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\\}", r"\\"),
        (r"in \boxed form: \boxed{3}", "3"),
        (r"\boxed{3}, as asked in \boxed form", "3"),
        (r"\boxed{}", ""),
    ],
)
def test_last_box_returns_the_content(text: str, content: str) -> None:
    box = last_box(text)
    assert box is not None
    assert box.content == content


@pytest.mark.parametrize(
    "text", [r"\boxed{1} then \boxed{", r"\boxed{1} then \boxed", r"\boxed{\{1}"[:-1], r"\boxed{\frac{1}{2}"]
)
def test_an_unfinished_last_box_has_no_content(text: str) -> None:
    box = last_box(text)
    assert box is not None
    assert box.content is None


@pytest.mark.parametrize("text", ["no", r"\fbox{3}", r"\boxedx{3}", r"a \boxed b"])
def test_text_without_a_box_has_none(text: str) -> None:
    assert last_box(text) is None


def test_box_knows_where_it_starts() -> None:
    box = last_box(r"ab \boxed{1}")
    assert box is not None
    assert box.start == 3


def test_closing_brace_stays_open_without_partner() -> None:
    assert closing_brace("{a{b}", 0) is None
