"""What else an answer stands for."""

import pytest

from drmas_pl.grading.alternatives import other_readings
from drmas_pl.grading.reading import read


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (r"\text{no solution}", r"\emptyset"),
        (r"\text{all real numbers}", r"\mathbb{R}"),
        (r"\{3\}", "3"),
        (r"x\ne 3", r"(-\infty,3)\cup(3,\infty)"),
        ("y=2, x=1", "(x,y)=(1,2)"),
        ("(y,x)=(2,1)", "(x,y)=(1,2)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
    ],
)
def test_conventions(text: str, other: str) -> None:
    (found,), (wanted, *_) = list(other_readings(read(text)[0])), read(other)
    assert str(found).replace("name='x'", "name=None") == str(wanted)


@pytest.mark.parametrize(
    "text",
    [
        "3",
        r"\{1,2\}",
        r"\{\{1\}\}",
        "(x,y)=(1,2)",
        "x=1, x=2",
        "x=1, 2",
        "x<3",
        "yes",
        r"\begin{pmatrix}1&2\end{pmatrix}",
    ],
)
def test_most_answers_stand_for_one_thing(text: str) -> None:
    assert list(other_readings(read(text)[0])) == []
