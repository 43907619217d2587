"""Finding the final answer in a solution."""

import json
from pathlib import Path

import pytest

from drmas_pl.rewards.math import extract_answer

CASES = json.loads((Path(__file__).parents[3] / "cases" / "math_pairs.json").read_text())["extraction"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"])
def test_shared_cases(case: dict) -> None:
    assert extract_answer(case["text"]).answer == case["answer"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("7", "no box"),
        ("", "no box"),
        (r"<think>\boxed{7}</think>", "no box"),
        (r"\boxed{7} \boxed{", "unfinished box"),
        (r"\boxed{7}, again: \boxed", "unfinished box"),
        (r"<think>\boxed{7}", "unfinished think"),
        (r"\boxed{ }", "empty box"),
    ],
)
def test_a_missing_answer_has_a_reason(text: str, reason: str) -> None:
    assert extract_answer(text) == (None, reason)


def test_a_dangling_think_end_hides_what_came_before() -> None:
    assert extract_answer(r"\boxed{1}</think>no box").answer is None
    assert extract_answer(r"\boxed{1}</think>\boxed{2}").answer == "2"
