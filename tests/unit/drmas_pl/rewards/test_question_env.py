"""One question, one text, and any reward function."""

from __future__ import annotations

import pytest

from drmas_pl.rewards.question_env import QuestionEnv
from drmas_pl.testing.conformance import check_env
from drmas_pl.types import Task


def test_a_question_is_paid_by_any_function() -> None:
    env = QuestionEnv(lambda text, references: 0.5 * (text in references), [Task("t", "Where?", ("here",))])
    with pytest.raises(RuntimeError, match="judge called before reset"):
        env.judge("here")
    assert env.reset(seed=0)[0] == "Where?" and env.judge("here").score == 0.5
    _, reward, terminated, _, info = env.clone().step("here")
    assert (reward, terminated, info["success"]) == (0.5, True, False)
    with pytest.raises(TypeError, match="reward must be a function"):
        QuestionEnv(3)  # type: ignore[arg-type]


def test_it_keeps_the_contract_and_closes_what_it_was_given() -> None:
    class Counting:
        closed = 0

        def __call__(self, text: str, references: object) -> float:
            return float(len(text) > 3)

        def close(self) -> None:
            self.closed += 1

    reward = Counting()
    env = QuestionEnv(reward, [Task("t", "Where?", ("here",))])
    check_env(env)
    assert env.clone().reward is reward
    env.close()
    assert reward.closed >= 1
