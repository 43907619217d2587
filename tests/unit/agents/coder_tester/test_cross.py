"""Programs and tests that are run against each other, and what both are paid for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from drmas_pl.agents.coder_tester import Coder, CrossExecutionTeam, Tester
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.envs.code import CodeEnv
from drmas_pl.errors import TrainingStopped
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.rollout.tree import TreeSampling
from drmas_pl.testing import tiny_policy
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Task, Trajectory

POLICY, TOKENIZER = tiny_policy(seed=1, context_length=4096)
TASK = Task(
    "double",
    "Print twice the number.",
    metadata={"tests": [{"input": "1", "output": "2"}, {"input": "4", "output": "8"}]},
)
PROGRAMS = ("print(2)", "print(2 * int(input()))", None, "print(0)")
# right and told apart from both wrong programs; right and from one; wrong, passed by one of them; wrong, passed by none
TESTS = (("5", "10"), ("1", "2"), ("1", "0"), ("5", "11"))
WORTH = [1.0, 0.5, -0.5, 0.0]


def program(text: str | None) -> str:
    return "no idea" if text is None else f"```python\n{text}\n```"


def said_tests(*pairs: tuple[str, str]) -> str:
    return f"<tests>{json.dumps([{'input': given, 'output': wanted} for given, wanted in pairs])}</tests>"


@pytest.fixture(scope="module")
def env() -> Iterator[CodeEnv]:
    env = CodeEnv((TASK,), workers=2)
    yield env
    env.close()


def grow(
    env: CodeEnv, coder: Sequence[str], tester: Sequence[str], team: Any = CrossExecutionTeam
) -> Trajectory:
    agents = {
        name: kind(name, sampling={"max_new_tokens": 300}, max_prompt_tokens=2000).bind(POLICY, TOKENIZER)
        for name, kind in (("coder", Coder), ("tester", Tester))
    }
    engines = {
        "coder": ScriptedEngine(list(coder), TOKENIZER),
        "tester": ScriptedEngine(list(tester), TOKENIZER),
    }
    phase = Phase("train", tree=TreeSampling(len(coder)))
    (played,) = Collector(team(env), agents).collect([TASK], engines, phase)
    batch = build_turn_batch([played], agents)
    by_agent = {
        name: [score for score, turn in zip(batch.score.tolist(), batch.turns) if turn.agent == name]
        for name in agents
    }
    assert by_agent["coder"] == [turn.reward for turn in played.candidates if turn.agent == "coder"]
    return played


def test_every_program_is_run_on_every_test(env: CodeEnv) -> None:
    played = grow(env, [program(text) for text in PROGRAMS], [said_tests(pair) for pair in TESTS])
    coder = [turn for turn in played.candidates if turn.agent == "coder"]
    tester = [turn for turn in played.candidates if turn.agent == "tester"]
    # the share of the gold tests that a program passes, whatever the tests are
    assert [turn.reward for turn in coder] == [0.5, 1.0, 0.0, 0.0]
    assert [turn.local_reward for turn in tester] == WORTH
    assert len({turn.reward for turn in tester}) == 1
    # the best program is handed in
    assert played.success and played.reward == 1
    assert [turn.candidate for turn in played.turns] == [1, 0]
    assert played.turns[0].prompt_ids != played.turns[1].prompt_ids
    assert "```" not in TOKENIZER.decode(played.turns[1].prompt_ids)


def test_tests_of_one_candidate_count_on_average(env: CodeEnv) -> None:
    said = [said_tests(*TESTS[:2]), said_tests(*TESTS[2:]), "nothing", said_tests(TESTS[0], TESTS[2])]
    played = grow(env, [program(text) for text in PROGRAMS], said)
    tester = [turn.local_reward for turn in played.candidates if turn.agent == "tester"]
    assert tester == [0.75, -0.25, 0.0, 0.25]


def test_without_a_right_program_tests_are_worth_nothing(env: CodeEnv) -> None:
    played = grow(env, [program("print(0)"), program(None)], [said_tests(pair) for pair in TESTS[:2]])
    assert [turn.local_reward for turn in played.candidates] == [0.0] * 4


def test_the_team_keeps_its_contract(env: CodeEnv) -> None:
    check_team(CrossExecutionTeam(env), task=TASK, episodes=1)
    team = CrossExecutionTeam(env)
    team.reset(options={"task": TASK})
    _, reward, terminated, _, _ = team.step({"coder": "nothing", "tester": said_tests(TESTS[0])})
    assert (reward, terminated) == (0.0, True)


def test_a_comparison_of_another_length_is_refused(env: CodeEnv) -> None:
    class Short(CrossExecutionTeam):
        def compare(self, candidates: Any) -> Any:
            return {"tester": [1.0]}

    with pytest.raises(TrainingStopped, match=r"Short.compare: 'tester' has 2 candidates, .* got 1"):
        grow(env, [program("print(0)")] * 2, [said_tests(TESTS[0])] * 2, Short)


def test_wrong_arguments_are_refused(env: CodeEnv) -> None:
    class Other(TextEnv):
        def begin(self, task: Task) -> str:
            return ""

        def act(self, action: str) -> StepResult:
            return StepResult("", terminated=True)

    with pytest.raises(ValueError, match="tester_reward must be at least 0, got -1"):
        CrossExecutionTeam(env, tester_reward=-1)
    with pytest.raises(
        ValueError, match="need an environment that runs programs, got Other; choose env=code"
    ):
        CrossExecutionTeam(Other())
