r"""Play the arithmetic tasks as a solver and a verifier who know the rules but have bad habits.

Place in the data flow: :mod:`scripts.embedded.math_warmup` turns these demonstrations into the tiny model. The habits are planted
on purpose: reinforcement learning then has a mediocre team to repair, whose weaknesses are known.

A *step* is one addition or subtraction, ``4 - 7 = -3``. Numbers of one digit are added up from left to right; two numbers of two digits
are taken apart: tens, units, and both results together. A solution is its steps and the boxed result. A critique works each step out
anew, says ``ok`` or ``bad`` to what the solver wrote, and ends with the verdict that follows.

Step classes, by what the step does to its first operand:
    ``zero``   it changes sign; the bad habit is to lose the new sign
    ``carry``  a digit overflows; the bad habit is to forget the carry or the borrow
    ``plain``  neither; the bad habit is to be off by one
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

StepClass = Literal["zero", "carry", "plain"]
Slips = Mapping[StepClass, float]


@dataclass(frozen=True, slots=True)
class Step:
    """One addition or subtraction.

    Attributes:
        value: First operand.
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
class Check:
    """The verifier's opinion of one step.

    Attributes:
        written: What the solver wrote.
        found: What the verifier gets.
    """

    written: int
    found: int

    @property
    def fine(self) -> bool:
        """Whether both agree."""
        return self.written == self.found

    def __str__(self) -> str:
        return f"{self.found} {'ok' if self.fine else 'bad'}"


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the demonstrators go wrong.

    Attributes:
        solver: Probability of a wrong result, per step class.
        verifier: The same for the verifier, when it works a step out anew.
        trust: Probability that the solver does not slip again at a step called ``bad``.
        keep: Probability that the solver keeps its result of a step called ``ok``.
    """

    solver: Slips
    verifier: Slips
    trust: float
    keep: float


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


def solve(expression: str, slips: Slips, rng: random.Random) -> list[Step]:
    """Work an expression out, slipping now and then and carrying on with the wrong value.

    Args:
        expression: Numbers of one digit, or two numbers of two digits, joined by `` + `` and `` - ``.
        slips: Probability of a slip, per step class.
        rng: Source of the slips.
    """
    return _walk(expression, lambda value, change: _result(value, change, slips, rng))


def revise(
    expression: str, steps: list[Step], checks: list[Check], habits: Habits, rng: random.Random
) -> list[Step]:
    """Work an expression out again after a review; a step that was reviewed may be kept or corrected, any other is worked out anew."""
    reviewed = {(step.value, step.change): (step, check) for step, check in zip(steps, checks, strict=True)}

    def result(value: int, change: int) -> int:
        step, check = reviewed.get((value, change), (None, None))
        if (
            step is not None
            and check is not None
            and rng.random() < (habits.keep if check.fine else habits.trust)
        ):
            return step.result if check.fine else value + change
        return _result(value, change, habits.solver, rng)

    return _walk(expression, result)


def _walk(expression: str, result: Callable[[int, int], int]) -> list[Step]:
    """Take the steps of an expression; ``result`` says what each comes to."""

    def work(value: int, number: int, subtracts: bool) -> Step:
        change = -number if subtracts else number
        return Step(value, change, subtracts, result(value, change))

    first, *rest = expression.split(" ")
    terms = [(int(number), sign == "-") for sign, number in zip(rest[::2], rest[1::2], strict=True)]
    if len(first) == 1:
        steps: list[Step] = []
        for number, subtracts in terms:
            steps.append(work(steps[-1].result if steps else int(first), number, subtracts))
        return steps
    ((number, subtracts),) = terms
    tens = work(int(first) // 10 * 10, number // 10 * 10, subtracts)
    units = work(int(first) % 10, number % 10, subtracts)
    return [tens, units, work(tens.result, abs(units.result), units.result < 0)]


def review(steps: list[Step], slips: Slips, rng: random.Random) -> list[Check]:
    """Work each step out anew, slipping now and then."""
    return [Check(step.result, _result(step.value, step.change, slips, rng)) for step in steps]


def solution_text(steps: list[Step]) -> str:
    r"""Write a solution.

    >>> never = {"zero": 0.0, "carry": 0.0, "plain": 0.0}
    >>> solution_text(solve("4 - 1 - 7", never, random.Random(0)))
    '4 - 1 = 3, 3 - 7 = -4 \\boxed{-4}'
    >>> solution_text(solve("42 - 25", never, random.Random(0)))
    '40 - 20 = 20, 2 - 5 = -3, 20 - 3 = 17 \\boxed{17}'
    """
    return f"{', '.join(map(str, steps))} \\boxed{{{steps[-1].result}}}"


def critique_text(checks: list[Check]) -> str:
    """Write a critique.

    >>> critique_text([Check(3, 3), Check(4, -4)])
    '3 ok, -4 bad <verify>reject</verify>'
    """
    return f"{', '.join(map(str, checks))} <verify>{'approve' if all(check.fine for check in checks) else 'reject'}</verify>"


def _result(value: int, change: int, slips: Slips, rng: random.Random) -> int:
    """Do one step, or slip."""
    return slipped(value, change, rng) if rng.random() < slips[classify(value, change)] else value + change
