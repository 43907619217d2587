"""A reward function of one's own, from Python and from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from drmas_pl.config.build import build_env
from drmas_pl.envs.math import MathEnv
from drmas_pl.rewards import qa
from drmas_pl.rewards.pool import GraderPool
from drmas_pl.types import Task
from tests.helpers.launching import configure


def length(text: str, references: Sequence[str], *, task: Task, weight: float = 0.5) -> float:
    return weight * len(text) * (task.reference == references)


@pytest.mark.parametrize(
    ("words", "paid"), [(("env",), 1.0), (("reward",), 1.0), (("env", "env.reward.weight=0.25"), 0.5)]
)
def test_a_function_grades(words: Sequence[str], paid: float) -> None:
    place, *more = words
    target = f"{'env.reward' if place == 'env' else place}._target_={__name__}.length"
    told = build_env(configure("+env=math", "+agents=loop", target, *more)["env"])
    for env in (told, MathEnv(reward=length)):
        env.reset(options={"task": Task("t", "?", ("3",))})
    assert told.step("ab")[1] == paid and env.step("ab")[1:3] == (1.0, True)


@pytest.mark.parametrize(
    ("option", "function"),
    [("exact_match", qa.exact_match), ("f1", qa.token_f1), ("sub_exact_match", qa.sub_exact_match)],
)
def test_shipped_functions_reach_the_environment(option: str, function: Any) -> None:
    assert build_env(configure("+env=math", "+agents=loop", f"reward={option}")["env"]).reward is function  # type: ignore[attr-defined]


@pytest.mark.parametrize(("option", "status"), [("math", "wrong"), ("math_verify", "correct")])
def test_math_verify_judges_as_math_verify_does(option: str, status: str) -> None:
    env: Any = build_env(
        configure("+env=math", "+agents=loop", f"reward={option}", "reward.workers=1")["env"]
    )
    assert isinstance(env.reward, GraderPool)
    env.reset(options={"task": Task("t", "?", (r"\frac{1}{2}",))})
    assert env.judge("It is $0.5$, without a box.").status == status
    env.close()
