"""The arithmetic demonstrator: its habits are exactly the ones that are planted."""

from __future__ import annotations

import random

import pytest

from drmas_pl.tools.embedded.math_demonstrator import (
    Habits,
    Step,
    classify,
    critique,
    critique_text,
    plan,
    slipped,
    solution_text,
    solve,
)

NEVER = {"zero": 0.0, "carry": 0.0, "plain": 0.0}
ALWAYS = {"zero": 1.0, "carry": 1.0, "plain": 1.0}


@pytest.mark.parametrize(
    ("value", "change", "kind", "wrong"),
    [
        (3, -7, "zero", {4}),
        (-3, 7, "zero", {-4}),
        (0, -5, "zero", {5}),
        (57, -80, "zero", {23}),
        (7, 6, "carry", {3}),
        (22, -5, "carry", {27}),
        (-22, -9, "carry", {-21}),
        (70, 60, "carry", {30}),
        (5, 4, "plain", {8, 10}),
        (7, -7, "plain", {-1, 1}),
        (42, -20, "plain", {21, 23}),
    ],
)
def test_every_class_has_its_slip(value: int, change: int, kind: str, wrong: set[int]) -> None:
    assert classify(value, change) == kind
    assert {slipped(value, change, random.Random(seed)) for seed in range(20)} == wrong


@pytest.mark.parametrize("expression", ["4 - 1 - 7", "42 - 25", "9 + 9 + 9 + 9", "10 - 99", "0 - 0 + 0"])
def test_without_slips_every_solution_is_right(expression: str) -> None:
    steps = solve(expression, NEVER, random.Random(0))
    assert all(step.right for step in steps)
    assert steps[-1].result == sum(change for change, _ in plan(expression)[1]) + plan(expression)[0]


def test_a_slip_is_carried_on() -> None:
    first, second = solve("3 - 7 - 1", {**NEVER, "zero": 1.0}, random.Random(0))
    assert (first, second) == (Step(3, -7, True, 4), Step(4, -1, True, 3))
    assert (first.right, second.right) == (False, True)


def test_a_faultless_verifier_marks_the_wrong_steps() -> None:
    steps = solve("3 - 7 - 1", {**NEVER, "zero": 1.0}, random.Random(0))
    assert critique(steps, Habits(NEVER, NEVER, NEVER), random.Random(0)) == [False, True]


@pytest.mark.parametrize(("blind", "fussy", "judged"), [(ALWAYS, NEVER, [True, True]), (NEVER, ALWAYS, [False, False])])
def test_a_verifier_can_be_blind_or_fussy(blind: dict[str, float], fussy: dict[str, float], judged: list[bool]) -> None:
    steps = solve("3 - 7 - 1", {**NEVER, "zero": 1.0}, random.Random(0))
    assert critique(steps, Habits(NEVER, blind, fussy), random.Random(0)) == judged  # type: ignore[arg-type]


def test_words() -> None:
    steps = solve("42 - 25", NEVER, random.Random(0))
    assert solution_text(steps) == r"42 - 20 = 22, 22 - 5 = 17 \boxed{17}"
    assert critique_text([True, True]) == "ok, ok <verify>approve</verify>"
