"""Programs of other libraries, as they are: tools are called, and three iterations train, without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

import drmas_pl
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.program import ChatAgent, ProgramEnv, ProgramTeam
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.testing import tiny_policy
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.types import Task

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "langgraph_program": ("langgraph", ["solver", "reviewer"]),
    "autogen_program": ("autogen_agentchat", ["solver", "critic"]),
    "openai_agents_program": ("agents", ["triage", "specialist"]),
}
ADD = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'
ASK = '<tool_call>{"name": "ask_specialist", "arguments": {"input": "3 + 4"}}</tool_call>'
REPLIES: dict[str, dict[str, str]] = {
    "langgraph_program": {"Correct this": "It is 7.", "<tool_response>7": "7", "": ADD},
    "autogen_program": {"Say APPROVE": "APPROVE", "<tool_response>7": "It is 7.", "": ADD},
    "openai_agents_program": {
        "<tool_response>It is": "It is 7.",
        "<tool_response>7": "It is 7.",
        "Work out": ADD,
        "": ASK,
    },
}


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    # the SDK's module is called as this repository's folder of teams
    elsewhere = [path for path in sys.path if Path(path).resolve() != EXAMPLES.parent]
    monkeypatch.setattr(sys, "path", elsewhere)
    pytest.importorskip(PROGRAMS[name][0])
    return run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.adapters
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_its_tools_are_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load(name, monkeypatch)
    names = PROGRAMS[name][1]
    policy, tokenizer = tiny_policy()
    settings = {"max_prompt_tokens": 8000, "sampling": {"max_new_tokens": 400}}
    agents = {one: ChatAgent(one, **settings).bind(policy, tokenizer) for one in names}
    team = ProgramTeam(ProgramEnv(example["run"]), names=names)
    engine = ScriptedEngine(REPLIES[name], tokenizer)
    tasks = [Task("seven", "What is 3 + 4?", ("7",))]
    collector = Collector(team, agents, env_workers=4, max_failed_share=1.0)
    (played,) = collector.collect(tasks, dict.fromkeys(names, engine), Phase("train"))
    assert not played.failed, played.cause
    assert played.reward == 1.0 and {turn.agent for turn in played.turns} == set(names)
    assert any("<tool_call>" in turn.text for turn in played.turns)
    shown = [tokenizer.decode(turn.prompt_ids) for turn in played.turns]
    assert any("<tool_response>7</tool_response>" in text for text in shown)


@pytest.mark.adapters
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_trains_three_iterations(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load(name, monkeypatch)
    result = drmas_pl.train(
        example["run"],
        example["TASKS"],
        agents=PROGRAMS[name][1],
        model="random:llama-tiny",
        iterations=3,
        tasks_per_iteration=2,
        rollout=RolloutSettings(samples=2, env_workers=4),
        sampling={"max_new_tokens": 8},
        record=("train",),
        output_dir=tmp_path / "run",
    )
    played = result.trajectories("train")
    assert len(played) == 12 and not any(one.failed for one in played)
    assert all(len(turn.logprobs) == len(turn.response_ids) > 0 for one in played for turn in one.turns)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_at_most_sixty_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60
