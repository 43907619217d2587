"""Repeating decimals are fractions."""

import pytest

from drmas_pl.grading.decimals import repeating_decimals


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        (r"0.\overline{3}", r"\frac{3}{9}"),
        (r".\overline{3}", r"\frac{3}{9}"),
        (r"1.2\bar{34}", r"\frac{1222}{990}"),
        (r"0.\bar3", r"\frac{3}{9}"),
        (r"0.\dot{2}\dot{1}", r"\frac{21}{99}"),
        (r"0.\dot{1}2\dot{3}", r"\frac{123}{999}"),
        (r"0.\overset{.}{3}", r"\frac{3}{9}"),
        ("0.(142857)", r"\frac{142857}{999999}"),
        ("0.(3)^2", "0.(3)^2"),
        ("0.5(3)", "0.5(3)"),
        (r"0.333\ldots", r"\frac{3}{9}"),
        (r"0.8333\dots", r"\frac{75}{90}"),
        ("0.1212...", r"\frac{12}{99}"),
        ("0.33...", "0.33"),
        ("3.1415...", "3.1415"),
        ("0.125", "0.125"),
        (r"x_1\ldots x_n", r"x_1\ldots x_n"),
        ("0." + "1" * 300 + "...", "0." + "1" * 300),
    ],
)
def test_repetition_is_read(text: str, fraction: str) -> None:
    assert repeating_decimals(text) == fraction
