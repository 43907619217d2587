"""Layout goes, everything that is read stays."""

import time

import pytest

from drmas_pl.grading.layout import strip_layout
from tests.helpers.pace import allowed


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"\textcolor{red}{5}", "{5}"),
        (r"\color[rgb]{1,0,0} 5", " 5"),
        (r"\fbox{5}", "{5}"),
        (r"{\large 5}", "{ 5}"),
        (r"{\bf 5}", r"\text{5}"),
        (r"\rm 5", " 5"),
        (r"\mathbf{x}+\vec{v}", " x + v "),
        (r"\mathbf{\frac{1}{2}}", r"{\frac{1}{2}}"),
        (r"\boldsymbol{25}", r"\text{25}"),
        (r"\text{\text{5}}", r"{\text{5}}"),
        (r"\text{New York}", r"\text{New York}"),
        (r"\text{cis }60", r"\cis 60"),
        (r"5\text{ sec}", r"5\text{ sec}"),
        (r"5\text{ min}", r"5\text{ min}"),
        (r"\nicefrac{1}{2}", r"\frac{1}{2}"),
        (r"{a \over b}", r"\frac{a }{ b}"),
        (r"{n \choose k}", r"\binom{n }{ k}"),
        (r"{}_{10}C_{3}", r" \binom{10}{3}"),
        (r"^{n}\mathrm{C}_{k}", r" \binom{n}{k}"),
        (r"x^2C_3", r"x^2C_3"),
        (r"\hat{i}+\hat\jmath", " i + j "),
        (r"\hat{p}", r"\hat{p}"),
        (r"1\text{,}000", "1{,}000"),
        (r"3\,\mathrm{m\,s^{-1}}", r"3\,\text{m s^-1}"),
        (r"3\,\frac{\text{m}}{\text{s}^{2}}", r"3\,\text{m/s^2}"),
        (r"3\,\mathrm{kg}\cdot\mathrm{m}", r"3\,\text{kg m}"),
        (r"a \\[4pt] b", r"a \\  b"),
        (r"\text{unclosed", r"\text{unclosed"),
    ],
)
def test_layout_goes(text: str, plain: str) -> None:
    assert strip_layout(text) == plain


@pytest.mark.parametrize(
    "unit", [r"\text{", r"\mathbf{", "{", r"\text{a ", r"{\bf ", r"_{1}C_", r"\frac{\text{"]
)
def test_long_texts_take_no_time(unit: str) -> None:
    started = time.process_time()
    strip_layout((unit * 2000)[:2000])
    assert time.process_time() - started < allowed(0.5)
