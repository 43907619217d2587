"""Reasoner and programmer: order of play, who sees what, when it ends, what is rewarded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from drmas_pl.agents.reasoner_tool import Programmer, Reasoner, ReasonerToolTeam
from drmas_pl.agents.reasoner_tool.prompts import PROGRAMMER, REASONER
from drmas_pl.envs.math import MathEnv
from drmas_pl.envs.math_tool import Calculation, MathToolEnv
from drmas_pl.rewards.pool import GraderPool
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Observation, Task

TASK = Task("t", "What is 1 + 2?", ("3",))
THREE, FOUR = r"so \boxed{3}", r"so \boxed{4}"
PRINTS_THREE, PRINTS_FOUR = "```python\nprint(3)\n```", "```python\nprint(4)\n```"


@pytest.fixture(scope="module")
def env() -> Iterator[MathToolEnv]:
    env = MathToolEnv((TASK,), reward=GraderPool(workers=1), workers=1)
    yield env
    env.close()


def started(env: MathToolEnv, **settings: Any) -> ReasonerToolTeam:
    team = ReasonerToolTeam(env, **settings)
    team.reset(options={"task": TASK})
    return team


def play(team: ReasonerToolTeam, *utterances: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    for utterance in utterances:
        result = team.step(utterance)
    return result


def test_agreement_ends_the_episode(env: MathToolEnv) -> None:
    team = started(env)
    assert team.step(THREE)[4]["agent"] == "programmer"
    _, reward, terminated, _, info = team.step(PRINTS_THREE)
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert info["metrics"] == {
        "rounds": 1.0,
        "reasoner_correct": 1.0,
        "program_correct": 1.0,
        "program_failed": 0.0,
        "agreed": 1.0,
        "truncated_answer": 0.0,
    }


def test_agreement_on_a_wrong_answer_earns_nothing(env: MathToolEnv) -> None:
    _, reward, terminated, _, info = play(started(env), FOUR, PRINTS_FOUR)
    assert (reward, terminated, info["success"], info["metrics"]["agreed"]) == (0.0, True, False, 1.0)


def test_without_agreement_both_go_again_and_the_program_is_graded(env: MathToolEnv) -> None:
    team = started(env)
    assert play(team, THREE, PRINTS_FOUR)[4]["agent"] == "reasoner"
    _, reward, terminated, _, info = play(team, FOUR, PRINTS_THREE)
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert (info["metrics"]["rounds"], info["metrics"]["agreed"], info["metrics"]["program_correct"]) == (
        2.0,
        0.0,
        0.0,
    )
    team = started(env, max_rounds=1)
    assert play(team, THREE, PRINTS_FOUR)[1:3] == (0.0, True)


def test_the_programmer_does_not_see_the_solution_of_the_round(env: MathToolEnv) -> None:
    team = started(env)
    team.step(THREE)
    assert team.observe("programmer").history == ()
    team.step(PRINTS_FOUR)
    messages = (
        Message("reasoner", "solution", THREE),
        Message("programmer", "program", "print(4)"),
        Message("env", "result", "4"),
    )
    assert team.observe("reasoner").history == messages
    team.step(FOUR)
    assert team.observe("programmer").history == messages
    assert len(team.observe("reasoner").history) == 4


def test_a_program_that_fails_agrees_with_nobody(env: MathToolEnv) -> None:
    team = started(env, max_rounds=1)
    _, reward, terminated, _, info = play(team, THREE, "```python\n1 / 0\n```")
    assert (reward, terminated, info["metrics"]["program_failed"]) == (0.0, True, 1.0)
    assert Message("env", "result", "error: ZeroDivisionError: division by zero") in team.history


def test_local_rewards_have_their_weights(env: MathToolEnv) -> None:
    team = started(env, reasoner_reward=0.25, programmer_reward=0.5)
    assert team.step(THREE)[4]["local_reward"] == 0.25
    assert team.step(PRINTS_FOUR)[4]["local_reward"] == 0.0
    assert team.step(FOUR)[4]["local_reward"] == 0.0
    assert team.step(PRINTS_THREE)[4]["local_reward"] == 0.5
    team = started(env)
    assert [team.step(said)[4]["local_reward"] for said in (THREE, PRINTS_THREE)] == [0.0, 0.0]


def test_unusable_turns_end_or_go_on(env: MathToolEnv) -> None:
    assert started(env).step("3")[1:3] == (0.0, True)
    assert play(started(env), THREE, "3")[1:3] == (0.0, True)
    team = started(env, on_invalid="continue")
    assert team.step("3")[4]["agent"] == "programmer"
    assert team.step(PRINTS_THREE)[4]["agent"] == "reasoner"
    assert play(team, THREE)[4]["agent"] == "programmer"
    _, reward, terminated, _, info = team.step("3")
    assert (reward, terminated, info["metrics"]["program_failed"]) == (0.0, True, 1.0)


def test_echoing_the_prompts_earns_nothing(env: MathToolEnv) -> None:
    for template in (REASONER["full"], PROGRAMMER["full"]):
        said = template.messages(Observation(TASK.question))[-1]["content"]
        for first in ((), (THREE,)):
            team = started(env, reasoner_reward=1.0, programmer_reward=1.0)
            _, reward, terminated, _, info = play(team, *first, said)
            assert (reward, terminated, info["local_reward"]) == (0.0, True, 0.0)


def test_clones_go_separate_ways(env: MathToolEnv) -> None:
    team = started(env)
    team.step(THREE)
    twin = team.clone()
    play(twin, PRINTS_FOUR, FOUR)
    assert (team.agent_selection, team.round, team.solution, len(team.history)) == ("programmer", 1, THREE, 1)
    assert (twin.round, twin.solution) == (2, FOUR)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_rounds": 0}, "max_rounds must be at least 1, got 0"),
        ({"reasoner_reward": -1}, "reasoner_reward and programmer_reward must be at least 0, got -1 and 0.0"),
        (
            {"programmer_reward": -1},
            "reasoner_reward and programmer_reward must be at least 0, got 0.0 and -1",
        ),
    ],
)
def test_settings_out_of_range_are_refused(env: MathToolEnv, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReasonerToolTeam(env, **settings)


def test_an_environment_that_runs_no_programs_is_refused() -> None:
    with pytest.raises(
        ValueError, match="need an environment that runs programs, got MathEnv; choose env=math_tool"
    ):
        ReasonerToolTeam(MathEnv((TASK,)))


class Desk(MathToolEnv):
    """Takes programs for what they say, so that whole episodes are quick; the sandbox has tests of its own."""

    def calculate(self, text: str) -> Calculation:
        return Calculation("3" if "print(3)" in text else "")


@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_keeps_the_team_contract(on_invalid: Any) -> None:
    def speak(agent: str, observation: Observation) -> str:
        return FOUR if agent == "reasoner" else PRINTS_THREE

    team = ReasonerToolTeam(Desk((TASK,), reward=GraderPool(workers=1), workers=1), on_invalid=on_invalid)
    check_team(team, speak, task=TASK)
    team.close()


def test_roles_read_words_as_the_team_does() -> None:
    assert Reasoner.grammar == ReasonerToolTeam.grammars["reasoner"]
    assert Programmer.grammar == ReasonerToolTeam.grammars["programmer"]
    for role in (Reasoner, Programmer):
        assert role.templates.keys() == {"full", "compact"}
        assert role("x", template="compact").template is role.templates["compact"]


def test_prompts_show_the_rounds_in_order() -> None:
    history = (
        Message("reasoner", "solution", "A {x}"),
        Message("programmer", "program", "print(4)"),
        Message("env", "result", "4"),
    )
    for template, end in ((REASONER["full"], "\\boxed{}."), (PROGRAMMER["full"], "ends with ```.")):
        text = template.messages(Observation("1 + {y}?", history))[-1]["content"]
        assert text.startswith(
            "Problem:\n1 + {y}?\n\nRounds so far, in which the two of you did not agree:\n[Solution 1 by the reasoner]\nA {x}\n\n"
            "[Program 1 by the programmer]\n```python\nprint(4)\n```\n\n[What program 1 came to]\n4\n\n"
        )
        assert text.endswith(end)
    shown = "1?\nsolve: A {x}\ncode: print(4)\nresult: 4\n"
    assert REASONER["compact"].text(Observation("1?", history)) == f"{shown}solve: "
    assert PROGRAMMER["compact"].text(Observation("1?", history)) == f"{shown}code: "
