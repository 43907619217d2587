"""The mathematics environment with programs: what they come to, whom they agree with, what earns nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gymnasium
import pytest

from drmas_pl.envs.math_tool import Calculation, MathToolEnv
from drmas_pl.rewards.pool import GraderPool
from drmas_pl.testing.conformance import check_env
from drmas_pl.types import Task
from tests.helpers.pace import allowed

TASK = Task("t", "What is 1/4 + 1/4?", ("1/2",), "tiny")


@pytest.fixture(scope="module")
def shared() -> Iterator[MathToolEnv]:
    env = MathToolEnv((TASK,), reward=GraderPool(workers=1), workers=2)
    yield env
    env.close()


@pytest.fixture
def env(shared: MathToolEnv) -> MathToolEnv:
    shared.reset(options={"task": TASK})
    return shared


@pytest.mark.parametrize(
    ("program", "answer", "error"),
    [
        ("print(6 * 7)", "42", ""),
        ("print('working'); print(42); print()", "42", ""),
        ("```python\nprint(1)\n```", "1", ""),
        ("1 / 0", "", "error: ZeroDivisionError: division by zero"),
        ("pass", "", "no answer on the last line"),
        ("print('} or \\\\boxed{1')", "", "no answer on the last line"),
        ("print('9' * 201)", "", "no answer on the last line"),
        ("raise SystemExit(1)", "", "error"),
    ],
)
def test_the_last_line_is_the_answer(env: MathToolEnv, program: str, answer: str, error: str) -> None:
    found = env.calculate(program)
    assert (found.answer, found.error) == (answer, error)
    assert found.solution == (rf"\boxed{{{answer}}}" if answer else "")


def test_programs_have_limits() -> None:
    env = MathToolEnv((TASK,), timeout=0.2, memory_mb=64, workers=1)
    started = time.monotonic()
    assert env.calculate("while True: pass").error == "timeout"
    assert time.monotonic() - started < allowed(5)
    assert env.pool.workers == 1
    env.close()
    env = MathToolEnv((TASK,), timeout=10, memory_mb=64, workers=1)
    assert env.calculate("x = bytearray(2**27)\nprint(1)").error.startswith("memory")
    env.close()


@pytest.mark.parametrize(
    ("solution", "answer", "agree"),
    [
        (r"so \boxed{\frac{1}{2}}", "1/2", True),
        (r"so \boxed{0.5}", "1/2", True),
        (r"so \boxed{0.4}", "1/2", False),
        (r"so \boxed{1}", "", False),
        ("", "1", False),
    ],
)
def test_agreement_is_about_the_answer(env: MathToolEnv, solution: str, answer: str, agree: bool) -> None:
    assert env.agree(solution, Calculation(answer)) is agree


def test_one_solution_is_graded_as_in_math(env: MathToolEnv) -> None:
    _, reward, terminated, _, info = env.step(r"\boxed{0.5}")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


@pytest.mark.parametrize("action", ["", "0.5", "```python\nprint(0.5)\n```", TASK.question])
def test_idle_play_earns_nothing(env: MathToolEnv, action: str) -> None:
    assert env.step(action)[1] == 0.0


def test_clones_share_sandbox_and_grader_alone(env: MathToolEnv) -> None:
    twin = env.clone()
    assert twin.pool is env.pool and twin.reward is env.reward
    twin.step(r"\boxed{0.5}")
    assert env.step(r"\boxed{1}")[1] == 0.0


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="timeout must be above 0 seconds, got 0"):
        MathToolEnv((TASK,), timeout=0)


def test_keeps_the_contract(env: MathToolEnv) -> None:
    check_env(env, task=TASK, actions=(r"\boxed{0.5}",))


def test_gymnasium_knows_it() -> None:
    import drmas_pl.envs  # noqa: F401

    env = gymnasium.make("drmas/MathTool-v0")
    assert isinstance(env.unwrapped, MathToolEnv)
    env.close()
