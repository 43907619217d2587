"""Programs are judged by their answers: comparison, the call of functions, limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from drmas_pl.rewards.code import (
    CodeGrader,
    TestCase,
    extract_program,
    has_program,
    outputs_match,
    values_match,
)
from drmas_pl.sandbox import SandboxPool

DOUBLE = [TestCase("1", "2"), TestCase("4", "8")]
CALLS = [TestCase("[1]", "2"), TestCase("[4]", "8")]


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(workers=2) as pool:
        yield pool


@pytest.mark.parametrize(
    ("found", "wanted", "tolerance", "match"),
    [
        ("1 2\n3", "1\n2 3\n", 0, True),
        ("1 2", "1 2 3", 0, False),
        ("12 3", "1 23", 0, False),
        ("0.3333333", "0.3333334", 0, False),
        ("0.3333333", "0.3333334", 1e-6, True),
        ("1000000", "1000001", 1e-5, True),
        ("1000000", "1000101", 1e-5, False),
        ("x", "y", 0.5, False),
        ("nan", "nan", 0.5, True),
        ("inf", "1", 0.5, False),
        ("Yes", "YES", 0, False),
        ("", "", 0, False),
        ("", " \n", 0, False),
    ],
)
def test_outputs_are_compared_word_by_word(found: str, wanted: str, tolerance: float, match: bool) -> None:
    assert outputs_match(found, wanted, tolerance=tolerance) is match


@pytest.mark.parametrize(
    ("found", "wanted", "tolerance", "match"),
    [
        (2, 2.0, 0, True),
        (True, 1, 0, False),
        (1, True, 0, False),
        ("1", 1, 0, False),
        (None, None, 0, True),
        ([1, [2]], [1, [2]], 0, True),
        ([1, 2], [2, 1], 0, False),
        ([1], [1, 1], 0, False),
        ({"a": 1.0}, {"a": 1}, 0, True),
        ({"a": 1}, {"b": 1}, 0, False),
        ([0.1 + 0.2], [0.3], 1e-9, True),
        (10**400, 1.0, 0.5, False),
        (float("nan"), float("nan"), 0.5, False),
    ],
)
def test_values_are_compared_by_kind(found: Any, wanted: Any, tolerance: float, match: bool) -> None:
    assert values_match(found, wanted, tolerance=tolerance) is match


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\nor\n```py\nb\n```", "b\n"),
        ("```\na\n```", "a\n"),
        ("```python\na", "```python\na"),
        ("<think>```\na\n```</think>b", "b"),
        ("x = '```'", "x = '```'"),
    ],
)
def test_the_last_complete_block_is_the_program(text: str, program: str) -> None:
    assert extract_program(text) == program


def test_a_block_must_be_complete_and_not_blank() -> None:
    assert has_program("so\n```python\nx\n```")
    assert not any(map(has_program, ("```python\nx", "```\n \n```", "x", "", "<think>```\nx\n```</think>")))


def statuses(pool: SandboxPool, program: str, cases: list[TestCase], **options: Any) -> list[str]:
    settings = {
        name: options.pop(name) for name in ("timeout", "budget", "tolerance", "wave") if name in options
    }
    return [result.status for result in CodeGrader(pool, **settings).grade(program, cases, **options)]


def test_programs_read_and_print(pool: SandboxPool) -> None:
    assert statuses(pool, "print(2 * int(input()))", DOUBLE) == ["passed", "passed"]
    assert statuses(pool, "print(2)", DOUBLE) == ["passed", "wrong"]
    assert statuses(pool, "1 / 0", DOUBLE) == ["error", "error"]
    assert statuses(pool, " \n", DOUBLE) == ["error", "error"]


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("def f(x): return 2 * x", ["passed", "passed"]),
        (
            "class Solution:\n    def f(self, x: Optional[int]):\n        print('noise')\n        return x + x",
            ["passed"] * 2,
        ),
        ("def f(x): return '2'", ["wrong", "wrong"]),
        ("def f(x): return {1}", ["error", "error"]),
        ("def g(x): return 2 * x", ["error", "error"]),
        ("def f(x):", ["error", "error"]),
        ("import os\nos._exit(0)", ["wrong", "wrong"]),
        ("print(2)\ndef f(x): raise SystemExit(0)", ["wrong", "wrong"]),
    ],
)
def test_functions_are_called(pool: SandboxPool, program: str, found: list[str]) -> None:
    assert statuses(pool, program, CALLS, entry_point="f") == found


def test_floats_within_the_tolerance_pass(pool: SandboxPool) -> None:
    case = [TestCase("1", "0.33333")]
    assert statuses(pool, "print(1 / 3)", case) == ["wrong"]
    assert statuses(pool, "print(1 / 3)", case, tolerance=1e-4) == ["passed"]


def test_time_is_limited_for_each_case_and_for_all(pool: SandboxPool) -> None:
    slow = "while True: pass"
    assert statuses(pool, slow, DOUBLE * 2, timeout=0.2, budget=0.3, wave=2) == [
        "timeout",
        "timeout",
        "skipped",
        "skipped",
    ]
    assert statuses(pool, slow, DOUBLE, timeout=0.2, budget=9, wave=1) == ["timeout", "timeout"]


def test_it_can_stop_at_the_first_failure(pool: SandboxPool) -> None:
    assert statuses(pool, "print(2)", DOUBLE * 2, wave=1, stop_early=True) == [
        "passed",
        "wrong",
        "skipped",
        "skipped",
    ]
    assert statuses(pool, "print(2)", DOUBLE * 2, wave=1) == ["passed", "wrong"] * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout": 0}, "timeout must be above 0 and at most budget seconds, got 0"),
        ({"timeout": 9, "budget": 3}, "timeout must be above 0 and at most budget seconds, got 9 and 3"),
        ({"tolerance": -1}, r"tolerance must be in \[0, 1\), got -1"),
        ({"wave": 0}, "wave must be at least 1 case at a time, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(pool: SandboxPool, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CodeGrader(pool, **settings)
