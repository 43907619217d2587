"""The mathematics environment: reward, diagnostics, faults and the conformance checks."""

from __future__ import annotations

import gymnasium
import pytest

from drmas_pl.data.readers import read_tasks
from drmas_pl.envs.math import MathEnv
from drmas_pl.errors import EnvironmentFault
from drmas_pl.rewards.base import Verdict
from drmas_pl.testing.conformance import check_env
from drmas_pl.types import Task

TASK = Task("t", "1 + 2 =", ("3",), "tiny")


@pytest.fixture
def env() -> MathEnv:
    env = MathEnv((TASK,))
    env.reset(options={"task": TASK})
    return env


def test_shows_the_question(env: MathEnv) -> None:
    assert env.reset(options={"task": TASK})[0] == "1 + 2 ="


@pytest.mark.parametrize(
    ("solution", "reward", "truncated_answer"),
    [
        (r"so \boxed{3}", 1.0, 0.0),
        (r"so \boxed{3.0}", 1.0, 0.0),
        (r"so \boxed{4}", 0.0, 0.0),
        (r"\boxed{3} or rather \boxed{4}", 0.0, 0.0),
        (r"\boxed{3} or rather \boxed{4", 0.0, 1.0),
        ("", 0.0, 0.0),
    ],
)
def test_grades_the_last_box(env: MathEnv, solution: str, reward: float, truncated_answer: float) -> None:
    _, got, terminated, truncated, info = env.step(solution)
    assert (got, terminated, truncated) == (reward, True, False)
    assert info == {
        "success": reward == 1.0,
        "metrics": {"truncated_answer": truncated_answer},
        "rewards": {},
    }


def test_alternatives_count(env: MathEnv) -> None:
    env.reset(options={"task": Task("t", "?", (r"\frac{1}{2}", "one half"))})
    assert env.step(r"\boxed{0.5}")[1] == 1.0


def test_judging_ends_nothing_and_is_not_repeated(env: MathEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    graded: list[str] = []

    def grade(text: str, references: tuple[str, ...]) -> Verdict:
        graded.append(text)
        return Verdict("correct", "string", "3")

    monkeypatch.setattr(env, "reward", grade)
    assert env.judge(r"\boxed{3}").status == "correct"
    assert env.step(r"\boxed{3}")[2]
    assert graded == [r"\boxed{3}"]


def test_the_same_text_is_judged_anew_for_another_task(env: MathEnv) -> None:
    assert env.judge(r"\boxed{3}").status == "correct"
    env.reset(options={"task": Task("u", "2 + 2 =", ("4",))})
    assert env.judge(r"\boxed{3}").status == "wrong"


def test_what_cannot_be_graded_is_a_fault_not_a_zero(env: MathEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "reward", lambda text, references: Verdict("ungradable", "timeout"))
    with pytest.raises(EnvironmentFault, match="task 't' cannot be graded: timeout"):
        env.step(r"\boxed{3}")


def test_an_unreadable_reference_is_noticed(env: MathEnv) -> None:
    env.reset(options={"task": Task("t", "?", ("??",))})
    with pytest.raises(EnvironmentFault, match="unreadable reference"):
        env.step(r"\boxed{3}")


def test_a_reward_function_of_ones_own_is_called_and_need_not_be_closed() -> None:
    env = MathEnv((TASK,), reward=lambda text, references: 0.25 * (references[0] in text))
    env.reset(seed=0)
    assert env.step("3")[1:3] == (0.25, True)
    env.close()
    with pytest.raises(TypeError, match="reward must be a function of text and references, got 'math'"):
        MathEnv((TASK,), reward="math")  # type: ignore[arg-type]


def test_clones_share_the_grader_and_closing_ends_it(env: MathEnv) -> None:
    twin = env.clone()
    assert twin.reward is env.reward
    env.close()
    with pytest.raises(EnvironmentFault, match="closed"):
        twin.step(r"\boxed{3}")


def test_judging_needs_a_task() -> None:
    with pytest.raises(RuntimeError, match="before reset"):
        MathEnv((TASK,)).judge("3")


def test_a_clone_keeps_its_own_state(env: MathEnv) -> None:
    twin = env.clone()
    assert env.step(r"\boxed{4}")[2]
    assert twin.step(r"\boxed{3}")[1] == 1.0


def test_ships_tasks_and_conforms() -> None:
    env = gymnasium.make("drmas/Math-v0")
    assert env.unwrapped.tasks == read_tasks("embedded:math/train")  # type: ignore[attr-defined]
    check_env(env, actions=(r"\boxed{1}",))


def test_the_splits_share_no_question_and_are_right() -> None:
    splits = [read_tasks(f"embedded:math/{split}") for split in ("train", "validation", "test")]
    questions = [task.question for tasks in splits for task in tasks]
    assert len(set(questions)) == len(questions)
    for task in splits[1] + splits[2]:
        expression = task.question.removeprefix(
            "State the final answer to the following arithmetic problem: "
        ).removesuffix(" =")
        first, *rest = expression.split(" ")
        value = int(first) + sum(
            int(number) * (1 if sign == "+" else -1) for sign, number in zip(rest[::2], rest[1::2])
        )
        assert task.reference == (str(value),)
