"""The pairs that math-verify may judge."""

import pytest

from drmas_pl.grading.notation import MAX_CHARACTERS, is_supported, same_notation


@pytest.mark.parametrize(
    ("reference", "answer", "supported"),
    [
        (r"(-\infty,3)\cup(3,\infty)", r"\mathbb{R}\setminus\{3\}", True),
        (r"\int_0^1 x dx", r"\int_0^1 y dy", True),
        ("1", r"\int_0^1 2x dx", False),
        ("??", "7", False),
        ("[0,1]", r"[0,2]\cap[-1,1]", True),
        ("(1,2)", r"(1,2)\setminus\equiv 3", False),
        ("(1,2)", r"(1,2)\setminus\{1\}, 5", False),
        ("[0,1]", "[0,1]", False),
        (r"\int_0^1 x dx", r"\int_0^1 x dx, 5", False),
        (r"\mathbb{R}\setminus\{3\}", r"\text{all but } 3", False),
        (r"\mathbb{R}\setminus\{9^{9^9}\}", "x", False),
        (r"\mathbb{R}\setminus\{9!\}", "x", False),
        (r"\mathbb{R}\setminus\{x^{1000}\}", "x", False),
        (r"\mathbb{R}\setminus\{12345678\}", "x", False),
        (r"\mathbb{R}\setminus\{3\}", "x" * (MAX_CHARACTERS + 1), False),
    ],
)
def test_support_is_narrow(reference: str, answer: str, supported: bool) -> None:
    assert is_supported(reference, answer) is supported


@pytest.mark.parametrize(
    ("reference", "answer", "equal"),
    [
        (r"\mathbb{R}\setminus\{3\}", r"(-\infty,3)\cup(3,\infty)", True),
        (r"\mathbb{R}\setminus\{3\}", r"(-\infty,4)\cup(4,\infty)", False),
        (r"\mathbb{R}\setminus\{3\}", "??", False),
        ("[0,1]", r"[0,2]\cap[-1,1]", True),
        ("[0,1]", r"[0,2]\cap[-1,1)", False),
        ("??", r"\mathbb{R}\setminus\{3\}", None),
        (r"\mathbb{R}\setminus\{\frac{1}{", r"\mathbb{R}", None),
    ],
)
def test_both_orders_must_agree(reference: str, answer: str, equal: bool | None) -> None:
    assert same_notation(reference, answer) is equal
