"""The programming environment: what is paid, what is shown, what earns nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest

from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.code import CodeEnv
from drmas_pl.errors import EnvironmentFault
from drmas_pl.rewards.code import TestCase
from drmas_pl.testing.conformance import check_env
from drmas_pl.types import Task

PROGRAM = Task(
    "double",
    "Print twice the number.",
    metadata={
        "tests": [{"input": "1", "output": "2"}, {"input": "4", "output": "8"}],
        "examples": [{"input": "3", "output": "6"}],
        "solution": "print(2 * int(input()))",
    },
)
FUNCTION = Task(
    "twice",
    "Write twice(x).",
    metadata={
        "tests": [{"input": "[1]", "output": "2"}, {"input": "[4]", "output": "8"}],
        "entry_point": "twice",
    },
)
RIGHT, HALF = "```python\nprint(2 * int(input()))\n```", "```python\nprint(2)\n```"


def make(**settings: Any) -> CodeEnv:
    env = CodeEnv((PROGRAM, FUNCTION), workers=2, **settings)
    env.reset(options={"task": PROGRAM})
    return env


@pytest.fixture(scope="module")
def shared() -> Iterator[CodeEnv]:
    env = CodeEnv((PROGRAM, FUNCTION), workers=2)
    yield env
    env.close()


@pytest.fixture
def env(shared: CodeEnv) -> CodeEnv:
    shared.reset(options={"task": PROGRAM})
    return shared


@pytest.mark.parametrize(
    ("action", "reward", "failed"),
    [
        (RIGHT, 1.0, 0.0),
        (HALF, 0.5, 0.0),
        ("print(2 * int(input()))", 1.0, 0.0),
        ("```python\n1 / 0\n```", 0.0, 1.0),
        ("", 0.0, 1.0),
    ],
)
def test_the_pass_rate_is_paid(env: CodeEnv, action: str, reward: float, failed: float) -> None:
    _, got, terminated, truncated, info = env.step(action)
    assert (got, terminated, truncated, info["success"]) == (reward, True, False, reward == 1.0)
    assert info["metrics"] == {"pass_rate": reward, "failed_tests": failed, "timed_out_tests": 0.0}


def test_functions_are_called(env: CodeEnv) -> None:
    assert env.reset(options={"task": FUNCTION})[0] == "Write twice(x)."
    assert env.step("```python\ndef twice(x):\n    return x * 2\n```")[1] == 1.0


def test_all_or_nothing_pays_for_all_tests_alone() -> None:
    env = make(reward="all_or_nothing")
    _, reward, _, _, info = env.step(HALF)
    assert (reward, info["success"], info["metrics"]["pass_rate"]) == (0.0, False, 0.5)
    env.reset(options={"task": PROGRAM})
    assert env.step(RIGHT)[1] == 1.0
    env.close()


def test_a_program_that_is_too_slow_is_no_success() -> None:
    env = make(timeout=0.2, budget=0.2)
    late = "import time\nprint(2 * int(input()), flush=True)\ntime.sleep(5)"
    _, reward, terminated, _, info = env.step(late)
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert info["metrics"] == {"pass_rate": 0.0, "failed_tests": 1.0, "timed_out_tests": 1.0}
    env.close()


def test_settings_reach_the_sandbox() -> None:
    env = make(memory_mb=64, tolerance=0.1)
    assert env.step("x = bytearray(100 * 2**20)\nprint(2 * int(input()))")[1] == 0.0
    env.reset(options={"task": PROGRAM})
    assert env.step("print(2.05 * int(input()))")[1] == 1.0
    assert env.grader.pool.workers == 2
    env.close()


def test_judging_ends_nothing_and_is_remembered(env: CodeEnv) -> None:
    verdict = env.judge(RIGHT)
    assert (verdict.status, verdict.pass_rate) == ("correct", 1.0)
    assert env.judge(RIGHT) is verdict
    assert env.judge(HALF).status == "wrong"
    assert env.step(RIGHT)[1] == 1.0


def test_made_up_cases_fit_the_task(env: CodeEnv) -> None:
    tests = [{"input": "1", "output": "2"}, {"input": [1], "output": 2}, {"input": "1", "output": 2}]
    assert env.make_cases(tests) == (TestCase("1", "2"),)
    assert [result.passed for result in env.check(HALF, env.make_cases(tests))] == [True]
    env.reset(options={"task": FUNCTION})
    assert env.make_cases(tests) == (TestCase("[1]", "2"),)
    assert env.agreement(env.make_cases(tests)) is None


@pytest.mark.parametrize(
    ("cases", "share"),
    [
        ([("5", "10"), ("6", "12")], 1.0),
        ([("5", "10"), ("6", "13")], 0.5),
        ([("5", "10"), (" 5 ", "10")], 0.5),
        ([("3", "6"), ("5", "10")], 0.5),
        ([("5", "10")], 0.5),
        ([], 0.0),
        ([("5", "10"), ("6", "12"), ("x", "y"), ("z", "")], 0.5),
    ],
)
def test_made_up_cases_agree_with_the_solution(
    env: CodeEnv, cases: list[tuple[str, str]], share: float
) -> None:
    assert env.agreement([TestCase(*case) for case in cases], wanted=2) == share


def test_idle_and_random_play_earn_nothing() -> None:
    env = CodeEnv(workers=2)
    rng = random.Random(0)
    tasks = [task for task in env.tasks if task.data_source == "generated/program"][:2]
    junk = "".join(chr(rng.randint(32, 126)) for _ in range(80))
    for task in tasks:
        for action in (
            "",
            "pass",
            "```python\npass\n```",
            "print()",
            junk,
            task.question,
        ):
            env.reset(options={"task": task})
            _, reward, _, _, info = env.step(action)
            assert (reward, info["success"]) == (0.0, False), (task.id, action)
    env.close()


def test_answers_learnt_by_heart_from_the_examples_earn_nothing() -> None:
    env = CodeEnv(workers=2)
    task = next(task for task in env.tasks if task.id == "inversions/program")
    known = {example["input"].strip(): example["output"] for example in task.metadata["examples"]}
    env.reset(options={"task": task})
    assert env.step(f"print({known!r}.get(input().strip(), ''))")[1] == 0.0
    env.close()


def test_a_task_without_tests_is_a_fault(env: CodeEnv) -> None:
    with pytest.raises(EnvironmentFault, match="task 't' cannot be graded: its metadata has no tests"):
        env.reset(options={"task": Task("t", "?")})
    with pytest.raises(
        EnvironmentFault, match="tests must be a list of objects with input and output, got 5"
    ):
        env.reset(options={"task": Task("t", "?", metadata={"tests": 5})})
    with pytest.raises(RuntimeError, match="called before reset"):
        CodeEnv((PROGRAM,)).judge("")


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="reward must be 'pass_rate' or 'all_or_nothing', got 'most'"):
        CodeEnv((PROGRAM,), reward="most")  # type: ignore[arg-type]


def test_keeps_the_contract(env: CodeEnv) -> None:
    check_env(env, task=PROGRAM, actions=(RIGHT,))


def test_gymnasium_knows_it() -> None:
    import drmas_pl.envs  # noqa: F401

    env = gymnasium.make("drmas/Code-v0")
    assert isinstance(env.unwrapped, CodeEnv)
    assert len(env.unwrapped.tasks) == 32
    env.close()


@pytest.mark.slow
def test_every_shipped_task_is_solved_by_its_solution_alone() -> None:
    env = CodeEnv(workers=2)
    tasks = [
        task for split in ("train", "validation", "test") for task in read_tasks(f"embedded:code/{split}")
    ]
    assert len(tasks) == 48
    for task, other in zip(tasks, tasks[2:] + tasks[:2], strict=True):
        env.reset(options={"task": task})
        assert env.judge(task.metadata["solution"]).status == "correct", task.id
        assert env.judge(other.metadata["solution"]).status == "wrong", (task.id, other.id)
    env.close()
