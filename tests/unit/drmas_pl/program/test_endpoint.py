"""The OpenAI client of a program: what it is answered, what is refused, and that it changes nothing about what is sampled."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from drmas_pl.errors import ConfigError
from drmas_pl.program import ChatAgent, ProgramEnv, ProgramTeam
from drmas_pl.rollout.play import play
from drmas_pl.testing import tiny_policy
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Task

TASKS = [Task("t", "Why?", ("b",))]


def start(program: Any) -> ProgramTeam:
    team = ProgramTeam(ProgramEnv(program, TASKS), names=["a", "b"])
    team.reset(seed=0)
    return team


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(task: Task, agents: Any) -> None:
        await agents.openai()

    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(
        ConfigError, match=r"agents.openai\(\) needs the openai library; install drmas_pl\[openai\]"
    ):
        start(program)


@pytest.mark.adapters
def test_requests_are_calls_of_the_agent_that_model_names() -> None:
    told: list[Any] = []

    async def program(task: Task, agents: Any) -> float:
        client = await agents.openai()
        ask = client.chat.completions.create
        parts = [{"type": "text", "text": "How"}, {"type": "text", "text": "?"}]
        told.extend(
            await asyncio.gather(
                ask(model="a", messages=[{"role": "user", "content": task.question}]),
                ask(model="b", messages=[{"role": "system", "content": "s"}, {"role": "user", "content": parts}]),
            )
        )  # fmt: skip
        several = await ask(model="a", messages=[{"role": "user", "content": "n"}], n=2, stream=False)
        told.append([choice.message.content for choice in several.choices])
        return 1.0

    team = start(program)
    assert team.agents_selection == ("a", "b")
    assert team.observe("b").history == (Message("system", "chat", "s"), Message("user", "chat", "How?"))
    team.step({"a": "so", "b": team.grammars["b"].parse("half", "length")})
    team.step("1")
    assert team.step("2")[1:3] == (1.0, True)
    choices = [answer.choices[0] for answer in told[:2]]
    assert [(choice.message.content, choice.finish_reason) for choice in choices] == [
        ("so", "stop"),
        ("half", "length"),
    ]
    assert told[0].model == "a" and told[2] == ["1", "2"]


@pytest.mark.adapters
def test_the_same_prompts_give_the_same_tokens_whichever_way_they_are_asked() -> None:
    async def plain(task: Task, agents: Any) -> None:
        first = await agents["a"].ask(task.question)
        await asyncio.gather(agents["a"].ask(first), agents["b"].ask(first))

    async def by_client(task: Task, agents: Any) -> None:
        client = await agents.openai()

        async def ask(name: str, text: str) -> str:
            told = await client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": text}]
            )
            return str(told.choices[0].message.content)

        first = await ask("a", task.question)
        await asyncio.gather(ask("a", first), ask("b", first))

    policy, tokenizer = tiny_policy()
    agents = [ChatAgent(name, sampling={"max_new_tokens": 8}).bind(policy, tokenizer) for name in ("a", "b")]
    played = [
        play(ProgramTeam(ProgramEnv(program), names=["a", "b"]), agents, TASKS[0], greedy=False, seed=3)
        for program in (plain, by_client)
    ]
    assert played[0].turns == played[1].turns and len(played[0].turns) == 3


@pytest.mark.adapters
def test_a_program_with_a_client_keeps_the_contract() -> None:
    async def program(task: Task, agents: Any) -> float:
        client = await agents.openai()
        said = ""
        for name in ("a", "b"):
            answer = await client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": task.question}]
            )
            said = answer.choices[0].message.content
        return float(said == task.reference[0])

    check_team(ProgramTeam(ProgramEnv(program, TASKS), names=["a", "b"]))


@pytest.mark.adapters
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "c"}, r"there is no agent 'c'; model must be one of \['a', 'b'\]"),
        (
            {"temperature": 0.5},
            "temperature is not taken here, got 0.5; leave it out, how an agent samples is",
        ),
        ({"stream": True}, "stream is not taken here, got True"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not taken here"),
        ({"n": 0}, "n must be a whole number from 1 to 64, got 0"),
        ({"messages": []}, "chat needs at least one message"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "must have a role out of"),
    ],
    ids=str,
)
def test_what_is_not_done_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    async def program(task: Task, agents: Any) -> None:
        client = await agents.openai()
        asked = {"model": "a", "messages": [{"role": "user", "content": "?"}], **changed}
        await client.chat.completions.create(**asked)

    with pytest.raises(Exception, match=message):
        start(program)
