"""Grade a program by what it answers to test cases.

Place in the data flow: environments hand over the text that a model wrote; the program in it runs in the sandbox, once per case, and its
answers are compared here. A case is an input with the output that is right for it: the text of stdin and stdout, or for a task that asks
for a function a JSON list of arguments and the JSON of the value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from drmas_pl.parsing import visible
from drmas_pl.sandbox import SandboxPool, SandboxResult

CaseStatus = Literal["passed", "wrong", "error", "timeout", "memory", "output_limit", "killed", "skipped"]
_FENCE: Final = re.compile(r"^```[^\n`]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_MARK: Final = "\x1evalue "
_PRELUDE: Final = (
    "import bisect, collections, functools, heapq, itertools, math, re, string\n"
    "from collections import *\nfrom functools import *\nfrom itertools import *\nfrom typing import *\n"
)
# Runs inside the sandbox: the function's arguments come on stdin, its value leaves on the last line.
_DRIVER: Final = """
import json, sys
sys.setrecursionlimit(20000)
space = {{"__name__": "solution"}}
exec({prelude!r}, space)
arguments = json.loads(sys.stdin.read())
exec(compile({program!r}, "solution.py", "exec"), space)
call = space[{entry!r}] if {entry!r} in space else getattr(space["Solution"](), {entry!r})
print("\\n" + {mark!r} + json.dumps(call(*arguments)))
"""


@dataclass(frozen=True, slots=True)
class TestCase:
    """What a program is given and what it should answer.

    Attributes:
        input: Text of stdin, or a JSON list of arguments.
        output: Text of stdout, or the JSON of the value.
    """

    input: str
    output: str
    # pytest would collect a class of this name
    __test__ = False


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case.

    Attributes:
        status: ``passed``; ``wrong`` for another answer; ``skipped`` once the program was out of time; else how it ended.
        answer: What it answered, as text; the last line of its errors if it failed.
    """

    status: CaseStatus
    answer: str = ""

    @property
    def passed(self) -> bool:
        """Whether the answer was right."""
        return self.status == "passed"


class CodeGrader:
    """Runs programs on cases; safe to share between threads.

    Args:
        pool: Runs the programs; closed with the grader.
        timeout: Seconds for each case, above 0.
        budget: Seconds for all cases of one program, at least ``timeout``; those that are left then are skipped.
        tolerance: Largest difference between numbers that are still equal, absolute up to 1 and relative to the right one above; 0
            compares words.
        wave: Cases at a time, at least 1.

    Raises:
        ValueError: A setting is out of range.
    """

    def __init__(
        self,
        pool: SandboxPool,
        *,
        timeout: float = 5.0,
        budget: float = 60.0,
        tolerance: float = 0.0,
        wave: int = 2,
    ) -> None:
        if not 0 < timeout <= budget:
            raise ValueError(
                f"timeout must be above 0 and at most budget seconds, got {timeout} and {budget}"
            )
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance must be in [0, 1), got {tolerance}")
        if wave < 1:
            raise ValueError(f"wave must be at least 1 case at a time, got {wave}")
        self.pool = pool
        self.timeout = timeout
        self.budget = budget
        self.tolerance = tolerance
        self.wave = wave

    def __deepcopy__(self, _: object) -> CodeGrader:
        return self

    def grade(
        self,
        program: str,
        cases: Sequence[TestCase],
        *,
        entry_point: str | None = None,
        stop_early: bool = False,
    ) -> tuple[CaseResult, ...]:
        """Run a program on every case.

        Args:
            program: Python source; an empty one passes nothing and is not run.
            cases: What to run it on.
            entry_point: Name of the function to call, also as a method of a class ``Solution``; None for a program that reads stdin.
            stop_early: Skip what follows the first case that is not passed.

        Returns:
            One result per case.

        Raises:
            SandboxError: The sandbox failed.
        """
        if not program.strip():
            return (CaseResult("error", "no program"),) * len(cases)
        source = program if entry_point is None else _drive(program, entry_point)
        results: list[CaseResult] = []
        spent = 0.0
        while len(results) < len(cases):
            if spent >= self.budget or (stop_early and not all(result.passed for result in results)):
                return (*results, *[CaseResult("skipped")] * (len(cases) - len(results)))
            wave = cases[len(results) : len(results) + self.wave]
            played = self.pool.run_many(
                [source] * len(wave), stdin=[case.input for case in wave], timeout=self.timeout
            )
            spent += sum(result.seconds for result in played)
            results += [
                self._judge(result, case, entry_point is not None)
                for result, case in zip(played, wave, strict=True)
            ]
        return tuple(results)

    def close(self) -> None:
        """End what runs."""
        self.pool.close()

    def _judge(self, result: SandboxResult, case: TestCase, is_function: bool) -> CaseResult:
        if result.status != "ok":
            return CaseResult(result.status, result.stderr.rstrip().rpartition("\n")[2][-200:])
        if not is_function:
            right = outputs_match(result.stdout, case.output, tolerance=self.tolerance)
            return CaseResult("passed" if right else "wrong", result.stdout.strip()[-200:])
        # A program that ends before its function returns has answered nothing, whatever it has printed.
        _, mark, value = result.stdout.rpartition(_MARK)
        value = value.strip()
        right = bool(mark) and values_match(_load(value), _load(case.output), tolerance=self.tolerance)
        return CaseResult("passed" if right else "wrong", value[-200:])


def extract_program(text: str) -> str:
    """Find the program in what a model said: the last complete fenced block, else all of the visible text.

    >>> extract_program("<think>```\\nx\\n```</think>Here:\\n```python\\nprint(1)\\n```\\nDone.")
    'print(1)\\n'
    >>> extract_program("print(1)")
    'print(1)'
    """
    shown = visible(text)
    blocks = _FENCE.findall(shown)
    return str(blocks[-1]) if blocks else shown


def has_program(text: str) -> bool:
    """Tell whether there is a complete fenced block outside think parts that is not blank.

    >>> has_program("```python\\nprint(1)\\n```"), has_program("```python\\nprint(1)"), has_program("print(1)")
    (True, False, False)
    """
    blocks = _FENCE.findall(visible(text))
    return bool(blocks and blocks[-1].strip())


def outputs_match(found: str, wanted: str, *, tolerance: float = 0.0) -> bool:
    """Compare outputs word by word; white space between words does not count.

    Args:
        found: What the program wrote.
        wanted: What is right; of no words, nothing matches, since a program that does nothing would.
        tolerance: See :class:`CodeGrader`.

    >>> outputs_match("1  2\\n", "1 2"), outputs_match("1.0", "1"), outputs_match("1.0", "1", tolerance=1e-6), outputs_match("", "")
    (True, False, True, False)
    """
    left = found.split()
    right = wanted.split()
    if not right or len(left) != len(right):
        return False
    return all(a == b or _close(_number(a), _number(b), tolerance) for a, b in zip(left, right))


def values_match(found: Any, wanted: Any, *, tolerance: float = 0.0) -> bool:
    """Compare values read from JSON: lists in order, truth values and numbers apart, whole numbers equal to floats of the same size.

    >>> values_match([1, 2.0], [1.0, 2]), values_match(True, 1), values_match(0.1 + 0.2, 0.3), values_match(0.1 + 0.2, 0.3, tolerance=1e-9)
    (True, False, False, True)
    """
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(
            values_match(a, b, tolerance=tolerance) for a, b in zip(found, wanted)
        )
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(
            values_match(found[key], wanted[key], tolerance=tolerance) for key in wanted
        )
    if _is_number(found) and _is_number(wanted):
        return bool(found == wanted) or _close(found, wanted, tolerance)
    return type(found) is type(wanted) and bool(found == wanted)


class _Unreadable:
    """Stands for an answer that is no JSON; equal to nothing."""


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _Unreadable()


def _drive(program: str, entry_point: str) -> str:
    return _DRIVER.format(prelude=_PRELUDE, program=program, entry=entry_point, mark=_MARK)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _close(found: float | None, wanted: float | None, tolerance: float) -> bool:
    """Compare finite numbers within a tolerance."""
    if not tolerance or found is None or wanted is None:
        return False
    try:
        found = float(found)
        wanted = float(wanted)
    except OverflowError:
        return False
    finite = math.isfinite(found) and math.isfinite(wanted)
    return finite and abs(found - wanted) <= tolerance * max(1.0, abs(wanted))
