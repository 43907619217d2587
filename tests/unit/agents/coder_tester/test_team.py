"""Coder and tester: order of play, when it ends, what each earns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from drmas_pl.agents.coder_tester import CoderTesterTeam
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.envs.code import CodeEnv, CodeVerdict
from drmas_pl.rewards.code import CaseResult, TestCase
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Observation, Task

TASK = Task(
    "double",
    "Print twice the number.",
    metadata={
        "tests": [{"input": "1", "output": "2"}, {"input": "4", "output": "8"}],
        "examples": [{"input": "3", "output": "6"}],
        "solution": "print(2 * int(input()))",
    },
)
RIGHT = "<think>hm</think>```python\nprint(2 * int(input()))\n```"
HALF = "```python\nprint(2)\n```"


def said_tests(*pairs: tuple[Any, Any]) -> str:
    return f"<tests>{json.dumps([{'input': given, 'output': wanted} for given, wanted in pairs])}</tests>"


GOOD = said_tests(("5", "10"), ("6", "12"))


@pytest.fixture(scope="module")
def env() -> Iterator[CodeEnv]:
    env = CodeEnv((TASK,), workers=2)
    yield env
    env.close()


def started(env: CodeEnv, **settings: Any) -> CoderTesterTeam:
    team = CoderTesterTeam(env, **{"tests_wanted": 2, **settings})
    team.reset(options={"task": TASK})
    return team


def play(team: CoderTesterTeam, *utterances: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    for utterance in utterances:
        result = team.step(utterance)
    return result


def test_a_program_that_passes_the_tests_is_handed_in(env: CodeEnv) -> None:
    team = started(env)
    assert team.agent_selection == "coder"
    _, reward, terminated, _, info = team.step(RIGHT)
    assert (reward, terminated, info["agent"], info["local_reward"]) == (0.0, False, "tester", 1.0)
    _, reward, terminated, _, info = team.step(GOOD)
    assert (reward, terminated, info["success"], info["local_reward"]) == (1.0, True, True, 1.0)
    assert info["metrics"] == {
        "rounds": 1.0,
        "first_pass_rate": 1.0,
        "tests_passed": 1.0,
        "tests_agree": 1.0,
        "pass_rate": 1.0,
        "failed_tests": 0.0,
        "timed_out_tests": 0.0,
    }


def test_a_program_that_fails_is_written_anew(env: CodeEnv) -> None:
    team = started(env)
    _, _, terminated, _, info = play(team, HALF, GOOD)
    assert (terminated, info["agent"], info["metrics"]["tests_passed"]) == (False, "coder", 0.0)
    assert team.observe("coder").history == (
        Message("coder", "program", "print(2)"),
        Message("tester", "tests", GOOD.removeprefix("<tests>").removesuffix("</tests>")),
        Message(
            "env", "result", "0 of 2 tests pass. First failure:\ninput: 5\nexpected: 10\nanswer: 2 (wrong)"
        ),
    )
    _, reward, terminated, _, info = play(team, RIGHT, GOOD)
    assert (reward, terminated, info["success"], info["metrics"]["rounds"]) == (1.0, True, True, 2.0)
    assert info["metrics"]["first_pass_rate"] == 0.5


def test_after_the_last_round_the_program_is_handed_in_anyway(env: CodeEnv) -> None:
    wrong = said_tests(("5", "11"), ("6", "12"))
    _, reward, terminated, _, info = play(started(env, max_rounds=1), RIGHT, wrong)
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert (info["local_reward"], info["metrics"]["tests_passed"]) == (0.5, 0.0)


def test_wrong_tests_do_not_make_a_success(env: CodeEnv) -> None:
    _, reward, terminated, _, info = play(started(env), HALF, said_tests(("5", "2"), ("6", "2")))
    assert (reward, terminated, info["success"]) == (0.5, True, False)
    assert (info["local_reward"], info["metrics"]["tests_passed"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("said", "share"),
    [
        (GOOD, 1.0),
        (said_tests(("5", "10")), 0.5),
        (said_tests(("3", "6"), ("3", "6")), 0.0),
        (said_tests(("5", "10"), ("5", "10")), 0.5),
        (said_tests(("5", "10"), (5, 10)), 0.5),
        (said_tests((5, 10)), 0.0),
    ],
)
def test_the_tester_earns_for_new_tests_that_agree(env: CodeEnv, said: str, share: float) -> None:
    assert play(started(env, tester_reward=0.8), RIGHT, said)[4]["local_reward"] == pytest.approx(0.8 * share)


def test_tests_that_do_not_fit_the_task_pass_no_program(env: CodeEnv) -> None:
    _, _, terminated, _, info = play(started(env), RIGHT, said_tests(([5], 10)))
    assert (terminated, info["metrics"]["tests_passed"], info["agent"]) == (False, 0.0, "coder")


def test_local_rewards_have_their_weights(env: CodeEnv) -> None:
    team = started(env, coder_reward=0.5, tester_reward=0.0)
    assert team.step(HALF)[4]["local_reward"] == 0.25
    assert team.step(GOOD)[4]["local_reward"] == 0.0


def test_more_tests_can_be_asked_for(env: CodeEnv) -> None:
    assert play(started(env, tests_wanted=4), RIGHT, GOOD)[4]["local_reward"] == 0.5


@pytest.mark.parametrize("said", ["", "print(1)", "```python\nprint(1)"])
def test_no_program_ends_the_episode(env: CodeEnv, said: str) -> None:
    _, reward, terminated, _, info = started(env).step(said)
    assert (reward, terminated, info["success"], info["local_reward"]) == (0.0, True, False, 0.0)


def test_no_program_can_cost_a_round(env: CodeEnv) -> None:
    team = started(env, on_invalid="continue")
    assert team.step("hm")[4]["agent"] == "coder"
    _, reward, terminated, _, info = team.step("hm")
    assert (reward, terminated, info["success"], info["metrics"]["rounds"]) == (0.0, True, False, 2.0)


def test_no_tests_count_as_a_failed_check(env: CodeEnv) -> None:
    team = started(env, on_invalid="continue")
    assert play(team, HALF, "hm")[4]["agent"] == "coder"
    _, reward, _, _, info = play(team, RIGHT, "<tests>[]</tests>")
    assert (reward, info["success"], info["local_reward"]) == (1.0, True, 0.0)


def test_echoing_the_prompts_earns_nothing(env: CodeEnv) -> None:
    from drmas_pl.agents.coder_tester.prompts import CODER, TESTER

    for template in (CODER["full"], TESTER["full"]):
        said = template.messages(Observation(TASK.question))[-1]["content"]
        team = started(env)
        _, reward, terminated, _, info = team.step(said)
        assert (reward, terminated, info["success"], info["local_reward"]) == (0.0, True, False, 0.0)
        team = started(env)
        _, reward, terminated, _, info = play(team, RIGHT, said)
        assert (terminated, info["success"], info["local_reward"]) == (True, False, 0.0)


def test_clones_go_separate_ways(env: CodeEnv) -> None:
    team = started(env)
    team.step(HALF)
    twin = team.clone()
    play(twin, GOOD, RIGHT)
    assert (team.agent_selection, team.round, team.program, len(team.history)) == (
        "tester",
        1,
        "print(2)\n",
        1,
    )
    assert twin.round == 2
    assert twin.unwrapped.grader is env.grader  # type: ignore[attr-defined]


class Desk(CodeEnv):
    """Takes programs for what they say they are, so that whole episodes are quick; the sandbox has tests of its own."""

    def __init__(self) -> None:
        TextEnv.__init__(self, (TASK,))
        self.reward = "pass_rate"
        self.grader = None  # type: ignore[assignment]

    def judge(self, text: str) -> CodeVerdict:
        return CodeVerdict((CaseResult("passed" if "int(input())" in text else "wrong"),))

    def check(self, text: str, cases: Sequence[TestCase]) -> tuple[CaseResult, ...]:
        return tuple(CaseResult("passed" if "int(input())" in text else "wrong") for _ in cases)

    def agreement(self, cases: Sequence[TestCase], *, wanted: int = 1) -> float | None:
        return len(cases) / wanted

    def close(self) -> None:
        TextEnv.close(self)


class Deaf(TextEnv):
    """Runs no programs."""

    def begin(self, task: Task) -> str:
        return ""

    def act(self, action: str) -> StepResult:
        return StepResult("", terminated=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_rounds": 0}, "max_rounds and tests_wanted must be at least 1, got 0 and 4"),
        ({"tests_wanted": 0}, "max_rounds and tests_wanted must be at least 1, got 2 and 0"),
        ({"coder_reward": -1}, "coder_reward and tester_reward must be at least 0, got -1 and 1.0"),
        ({"tester_reward": -1}, "coder_reward and tester_reward must be at least 0, got 1.0 and -1"),
    ],
)
def test_settings_out_of_range_are_refused(env: CodeEnv, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoderTesterTeam(env, **settings)


def test_an_environment_that_runs_no_programs_is_refused() -> None:
    with pytest.raises(
        ValueError, match="coder and tester need an environment that runs programs, got Deaf; choose env=code"
    ):
        CoderTesterTeam(Deaf())


def speak(agent: str, observation: Observation) -> str:
    """Say something that the agent's grammar accepts."""
    return HALF if agent == "coder" else GOOD


@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_keeps_the_team_contract(on_invalid: Any) -> None:
    team = CoderTesterTeam(Desk(), on_invalid=on_invalid)
    check_team(team, speak, task=TASK)


@pytest.mark.slow
@pytest.mark.parametrize("on_invalid", ["end", "continue"])
def test_keeps_the_team_contract_with_real_programs(env: CodeEnv, on_invalid: Any) -> None:
    check_team(CoderTesterTeam(env, on_invalid=on_invalid), speak, task=TASK)
