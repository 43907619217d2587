r"""Play the arithmetic tasks as a solver and a verifier who know the rules but have bad habits.

Place in the data flow: :mod:`drmas_pl.tools.embedded.math_warmup` turns these demonstrations into the tiny model. The habits are planted
on purpose: reinforcement learning then has a mediocre team to repair, whose weaknesses are known.

A *step* is one addition or subtraction, ``42 - 20 = 22``. A two-digit operand is taken in two steps, its tens and then its units. A
solution is its steps and the boxed result; a critique is one word per step, ``ok`` or ``bad``, and the verdict that follows.

Step classes, by what the step does to a running value:
    ``zero``   it changes sign; the bad habit is to lose the new sign
    ``carry``  a digit overflows; the bad habit is to forget the carry or the borrow
    ``plain``  neither; the bad habit is to be off by one
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

StepClass = Literal["zero", "carry", "plain"]


@dataclass(frozen=True, slots=True)
class Step:
    """One addition or subtraction.

    Attributes:
        value: Running value before the step.
        change: What is added to it; negative for a subtraction.
        subtracts: Whether it is written with a minus sign.
        result: What the solver wrote, right or not.
    """

    value: int
    change: int
    subtracts: bool
    result: int

    @property
    def right(self) -> bool:
        """Whether the written result is the true one."""
        return self.result == self.value + self.change

    def __str__(self) -> str:
        return f"{self.value} {'-' if self.subtracts else '+'} {abs(self.change)} = {self.result}"


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the demonstrator goes wrong.

    Attributes:
        slip: Probability of a wrong result, per step class.
        blind: Probability that the verifier calls a wrong step ``ok``, per step class.
        fussy: Probability that the verifier calls a right step ``bad``, per step class.
    """

    slip: Mapping[StepClass, float]
    blind: Mapping[StepClass, float]
    fussy: Mapping[StepClass, float]


def plan(expression: str) -> tuple[int, list[tuple[int, bool]]]:
    """Split an expression into a start value and elementary changes.

    Args:
        expression: Non-negative numbers joined by `` + `` and `` - ``, at most two digits each.

    Returns:
        The first number, and per change its signed amount and whether it is written as a subtraction.

    >>> plan("42 - 25 + 3")
    (42, [(-20, True), (-5, True), (3, False)])
    """
    first, *rest = expression.split(" ")
    changes: list[tuple[int, bool]] = []
    for sign, digits in zip(rest[::2], rest[1::2], strict=True):
        number, subtracts = int(digits), sign == "-"
        parts = [number] if number < 10 else [number // 10 * 10, number % 10]
        changes += [(-part if subtracts else part, subtracts) for part in parts]
    return int(first), changes


def classify(value: int, change: int) -> StepClass:
    """Name the class of a step.

    >>> classify(3, -7), classify(7, 6), classify(42, -20), classify(5, 4)
    ('zero', 'carry', 'plain', 'plain')
    """
    result = value + change
    if result != 0 and (result < 0) != (value < 0):
        return "zero"
    unit = 100 if abs(change) >= 10 else 10
    return "carry" if abs(result) // unit != abs(value) // unit else "plain"


def slipped(value: int, change: int, rng: random.Random) -> int:
    """Return the wrong result that the habit of this step's class leads to.

    >>> slipped(3, -7, random.Random(0)), slipped(7, 6, random.Random(0)), slipped(22, -5, random.Random(0))
    (4, 3, 27)
    """
    result, kind = value + change, classify(value, change)
    if kind == "zero":
        return -result
    if kind == "carry":
        unit = 100 if abs(change) >= 10 else 10
        return result - unit if change > 0 else result + unit
    return result + rng.choice((-1, 1))


def solve(expression: str, slip: Mapping[StepClass, float], rng: random.Random) -> list[Step]:
    """Work an expression out, slipping now and then and carrying on from the wrong value."""
    value, changes = plan(expression)
    steps = []
    for change, subtracts in changes:
        slips = rng.random() < slip[classify(value, change)]
        result = slipped(value, change, rng) if slips else value + change
        steps.append(Step(value, change, subtracts, result))
        value = result
    return steps


def critique(steps: list[Step], habits: Habits, rng: random.Random) -> list[bool]:
    """Judge each step; True stands for ``ok``."""
    judged = []
    for step in steps:
        kind = classify(step.value, step.change)
        errs = rng.random() < (habits.fussy[kind] if step.right else habits.blind[kind])
        judged.append(step.right != errs)
    return judged


def solution_text(steps: list[Step]) -> str:
    r"""Write a solution.

    >>> solution_text(solve("4 - 1 - 7", {"zero": 0, "carry": 0, "plain": 0}, random.Random(0)))
    '4 - 1 = 3, 3 - 7 = -4 \\boxed{-4}'
    """
    return f"{', '.join(map(str, steps))} \\boxed{{{steps[-1].result}}}"


def critique_text(judged: list[bool]) -> str:
    """Write a critique.

    >>> critique_text([True, False])
    'ok, bad <verify>reject</verify>'
    """
    words = ", ".join("ok" if fine else "bad" for fine in judged)
    return f"{words} <verify>{'approve' if all(judged) else 'reject'}</verify>"
