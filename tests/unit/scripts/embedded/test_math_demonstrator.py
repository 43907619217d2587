"""The arithmetic demonstrator: its habits are exactly the ones that are planted."""

from __future__ import annotations

import random

import pytest

from scripts.embedded.math_demonstrator import (
    Check,
    Habits,
    Step,
    classify,
    critique_text,
    review,
    revise,
    slipped,
    solution_text,
    solve,
)

NEVER = {"zero": 0.0, "carry": 0.0, "plain": 0.0}


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


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("4 - 1 - 7", -4),
        ("42 - 25", 17),
        ("9 + 9 + 9 + 9", 36),
        ("10 - 99", -89),
        ("23 - 60", -37),
        ("0 - 0 + 0", 0),
    ],
)
def test_without_slips_every_solution_is_right(expression: str, value: int) -> None:
    steps = solve(expression, NEVER, random.Random(0))
    assert all(step.right for step in steps)
    assert steps[-1].result == value


def test_two_digits_are_taken_apart() -> None:
    assert [str(step) for step in solve("57 - 87", NEVER, random.Random(0))] == [
        "50 - 80 = -30",
        "7 - 7 = 0",
        "-30 + 0 = -30",
    ]


def test_a_slip_is_carried_on() -> None:
    first, second = solve("3 - 7 - 1", {**NEVER, "zero": 1.0}, random.Random(0))
    assert (first, second) == (Step(3, -7, True, 4), Step(4, -1, True, 3))
    assert (first.right, second.right) == (False, True)


@pytest.mark.parametrize(
    ("slips", "checks"),
    [(NEVER, [Check(4, -4), Check(3, 3)]), ({**NEVER, "zero": 1.0}, [Check(4, 4), Check(3, 3)])],
)
def test_the_verifier_works_each_step_out_with_slips_of_its_own(
    slips: dict[str, float], checks: list[Check]
) -> None:
    steps = solve("3 - 7 - 1", {**NEVER, "zero": 1.0}, random.Random(0))
    assert review(steps, slips, random.Random(0)) == checks  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trust", "keep", "second"),
    [
        (1.0, 0.0, ["3 - 7 = -4", "-4 - 1 = -5"]),
        (0.0, 0.0, ["3 - 7 = 4", "4 - 1 = 3"]),
    ],
)
def test_a_second_attempt_may_trust_the_review(trust: float, keep: float, second: list[str]) -> None:
    slips = {**NEVER, "zero": 1.0}
    first = solve("3 - 7 - 1", slips, random.Random(0))
    checks = review(first, NEVER, random.Random(0))
    habits = Habits(solver=slips, verifier=NEVER, trust=trust, keep=keep)  # type: ignore[arg-type]
    assert [str(step) for step in revise("3 - 7 - 1", first, checks, habits, random.Random(0))] == second


def test_a_second_attempt_keeps_what_was_called_ok() -> None:
    first = solve("3 - 7 - 1", {**NEVER, "zero": 1.0}, random.Random(0))
    checks = [Check(step.result, step.result) for step in first]
    assert (
        revise("3 - 7 - 1", first, checks, Habits(NEVER, NEVER, trust=0.0, keep=1.0), random.Random(0))
        == first
    )  # type: ignore[arg-type]


def test_words() -> None:
    steps = solve("42 - 25", NEVER, random.Random(0))
    assert solution_text(steps) == r"40 - 20 = 20, 2 - 5 = -3, 20 - 3 = 17 \boxed{17}"
    assert (
        critique_text(review(steps, NEVER, random.Random(0)))
        == "20 ok, -3 ok, 17 ok <verify>approve</verify>"
    )
