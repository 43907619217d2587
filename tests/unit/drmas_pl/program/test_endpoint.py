"""The OpenAI client of a program: what it is answered, what is refused, and that it changes nothing about what is sampled."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from typing import Any

import aiohttp
import pytest

from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.errors import ConfigError
from drmas_pl.program import ChatAgent, ProgramEnv, ProgramServer, ProgramTeam
from drmas_pl.program.calls import in_loop
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.rollout.play import play
from drmas_pl.testing import tiny_policy
from drmas_pl.testing.conformance import check_team
from drmas_pl.types import Message, Task

TASKS = [Task("t", "Why?", ("b",))]


def collect(program: Any, reply: Any, *, samples: int = 1, **settings: Any) -> list[Any]:
    policy, tokenizer = tiny_policy()
    names = ["a", "b"]
    agents = {
        name: ChatAgent(name, max_prompt_tokens=4000, sampling={"max_new_tokens": 400}).bind(
            policy, tokenizer
        )
        for name in names
    }
    engine = ScriptedEngine(reply, tokenizer, logprob=-0.5)
    team = ProgramTeam(ProgramEnv(program, TASKS), names=names, **settings)
    collector = Collector(team, agents, max_failed_share=1.0, env_workers=4)
    return collector.collect(TASKS, dict.fromkeys(names, engine), Phase("train", samples=samples))


def start(program: Any) -> ProgramTeam:
    team = ProgramTeam(ProgramEnv(program, TASKS), names=["a", "b"])
    team.reset(seed=0)
    return team


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program(task: Task, agents: Any) -> None:
        await agents.openai()

    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(
        ConfigError,
        match=r"an OpenAI client of a program needs the openai library; install drmas_pl\[openai\]",
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
    assert [call.agent for call in team.calls()] == ["a", "a"]
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
        (
            {"model": "c"},
            r"asks for an agent 'c'; it has \['a', 'b'\]; name one of them, or set agents.default_agent",
        ),
        (
            {"temperature": 0.5},
            "temperature is not taken here, got .*0.5.*; leave it out, how an agent samples is",
        ),
        ({"top_logprobs": 3, "logprobs": True}, "top_logprobs is not taken here, got 3"),
        ({"tools": [{"type": "function"}]}, "a tool must be a function with a name"),
        ({"tool_choice": "required"}, "tool_choice is not taken here, got 'required'"),
        ({"response_format": {"type": "json_object"}}, "response_format is not taken here"),
        ({"stop": ""}, "stop must be a text or several, none of them empty"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
        ({"n": 0}, "n must be a whole number from 1 to 64, got 0"),
        ({"messages": []}, "chat needs at least one message"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "must have a role out of"),
        ({"messages": "hello"}, "messages must be a list, got"),
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


SUMS = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


@pytest.mark.adapters
def test_tools_are_shown_and_calls_of_them_are_read() -> None:
    told: list[Any] = []

    async def program(task: Task, client: Any) -> float:
        chat: list[Any] = [{"role": "user", "content": task.question}]
        first = await client.chat.completions.create(model="a", messages=chat, tools=[SUMS])
        said = first.choices[0]
        told.append(said)
        chat += [said.message.model_dump(exclude_none=True)]
        chat += [{"role": "tool", "tool_call_id": said.message.tool_calls[0].id, "content": "3"}]
        last = await client.chat.completions.create(model="a", messages=chat, tools=[SUMS])
        return float(last.choices[0].message.content)

    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        if "tool_response" in prompt.partition("Why?")[2]:
            return "3"
        return 'Let me see. <tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>'

    (played,) = collect(program, reply)
    assert played.reward == 3.0 and len(played.turns) == 2
    assert told[0].finish_reason == "tool_calls" and told[0].message.content == "Let me see."
    assert told[0].message.tool_calls[0].function.arguments == '{"x": 1, "y": 2}'
    assert '"name": "add"' in prompts[0] and "<tool_response>3</tool_response>" in prompts[1]
    assert '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>' in prompts[1]


@pytest.mark.adapters
def test_fields_of_a_request_are_honoured() -> None:
    told: list[Any] = []

    async def program(task: Task, client: Any) -> None:
        async def ask(**fields: Any) -> Any:
            chat = [{"role": "user", "content": "q"}]
            return await client.chat.completions.create(model="a", messages=chat, **fields)

        told.append(await ask(stop=["STOP", "no"], temperature=1.0, top_p=1.0))
        told.append(await ask(max_tokens=3))
        told.append(await ask(logprobs=True))
        stream = await ask(stream=True, stream_options={"include_usage": True})
        told.append([part async for part in stream])

    (played,) = collect(program, lambda prompt: "one STOP two")
    assert told[0].choices[0].message.content.strip() == "one" and told[0].choices[0].finish_reason == "stop"
    assert played.turns[0].text == "one STOP"
    assert told[1].choices[0].finish_reason == "length" and len(played.turns[1].response_ids) == 3
    assert told[1].usage.completion_tokens == 3 and told[1].usage.prompt_tokens == len(
        played.turns[1].prompt_ids
    )
    tokens = told[2].choices[0].logprobs.content
    assert [token.logprob for token in tokens] == list(played.turns[2].logprobs)
    assert "".join(token.token for token in tokens).startswith("one STOP two")
    parts = told[3]
    assert parts[0].choices[0].delta.content == "one STOP two" and parts[1].choices[0].finish_reason == "stop"
    assert parts[-1].usage.completion_tokens == len(played.turns[3].response_ids)


@pytest.mark.adapters
def test_another_temperature_than_the_agent_s_is_refused() -> None:
    async def program(task: Task, client: Any) -> None:
        await client.chat.completions.create(
            model="a", messages=[{"role": "user", "content": "q"}], temperature=0.3
        )

    (played,) = collect(program, lambda prompt: "x")
    assert played.failed and "temperature=0.3 is not how this agent samples and learns, which is 1.0" in str(
        played.cause
    )


@pytest.mark.adapters
def test_a_function_runs_in_a_thread_and_samples_what_a_coroutine_does() -> None:
    async def waiting(task: Task, client: Any) -> None:
        for text in ("x", "y"):
            await client.chat.completions.create(model="a", messages=[{"role": "user", "content": text}])

    def blocking(task: Task, client: Any) -> None:
        for text in ("x", "y"):
            client.chat.completions.create(model="a", messages=[{"role": "user", "content": text}])

    def plain(task: Task, agents: Any) -> None:
        for text in ("x", "y"):
            agents["a"].ask(text)

    policy, tokenizer = tiny_policy()
    agents = [ChatAgent("a", sampling={"max_new_tokens": 8}).bind(policy, tokenizer)]
    played = [
        play(ProgramTeam(ProgramEnv(program), names=["a"]), agents, TASKS[0], greedy=False, seed=3)
        for program in (waiting, blocking, plain)
    ]
    assert played[0].turns == played[1].turns == played[2].turns and len(played[0].turns) == 2


CHILD = """
import openai, sys
client = openai.OpenAI()
answer = client.chat.completions.create(model="a", messages=[{"role": "user", "content": sys.argv[1]}])
print(answer.choices[0].message.content)
"""


@pytest.mark.adapters
def test_a_child_process_reaches_the_agents_of_its_trajectory_alone() -> None:
    import openai

    addresses: list[Any] = []

    async def program(task: Task, address: Any) -> float:
        addresses.append(address)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CHILD, task.question),
            env={**os.environ, **address.variables},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await child.communicate()
        if address is not addresses[0]:
            other = openai.AsyncOpenAI(base_url=address.url, api_key=addresses[0].secret, max_retries=0)
            with pytest.raises(openai.AuthenticationError, match="opens no program at this address"):
                await other.models.list()
            await other.close()
        return float(said.decode().strip() == "fine")

    server = ProgramServer()
    played = collect(program, lambda prompt: "fine", samples=2, server=server)
    assert [one.reward for one in played] == [1.0, 1.0] and server.count == 0
    assert server._runner is None


@pytest.mark.adapters
def test_what_tasks_and_threads_ask_has_seeds_that_time_does_not_change() -> None:
    order: list[str] = []

    async def program(task: Task, agents: Any) -> None:
        async def ask(text: str) -> None:
            for _ in range(order.index(text)):
                await asyncio.sleep(0)
            await agents["a"].ask(text)

        await asyncio.gather(*(ask(text) for text in "xyz"))
        await agents["a"].ask("end")

    seen = []
    for order in (["x", "y", "z"], ["z", "x", "y"]):  # noqa: B007
        policy, tokenizer = tiny_policy()
        agents = [ChatAgent("a", sampling={"max_new_tokens": 8}).bind(policy, tokenizer)]
        team = ProgramTeam(ProgramEnv(program), names=["a"])
        played = play(team, agents, TASKS[0], greedy=False, seed=5)
        assert [turn.move for turn in played.turns] == [0, 0, 0, 1]
        seen.append({turn.prompt_ids: turn.response_ids for turn in played.turns})
    assert seen[0] == seen[1]


@pytest.mark.adapters
def test_many_programs_leave_no_tasks_and_no_sockets_behind() -> None:
    async def in_process(task: Task, client: Any) -> None:
        for _ in range(6):
            await client.chat.completions.create(model="a", messages=[{"role": "user", "content": "q"}])

    async def by_socket(task: Task, address: Any) -> None:
        key = {"authorization": f"Bearer {address.secret}"}
        fields = {"model": "a", "messages": [{"role": "user", "content": "q"}]}
        async with aiohttp.ClientSession(headers=key) as session:
            for _ in range(6):
                async with session.post(f"{address.url}/chat/completions", json=fields) as response:
                    assert (await response.json())["choices"][0]["message"]["content"] == "x"

    async def left() -> int:
        return len([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])

    server = ProgramServer()
    for program in (in_process, by_socket):
        played = collect(program, lambda prompt: "x", samples=30, server=server)
        assert [len(one.turns) for one in played] == [6] * 30
    gc.collect()
    assert server._runner is None and server.count == 0
    for _ in range(100):
        if in_loop(left()).result(20) == 0:
            return
        time.sleep(0.05)
    raise AssertionError("tasks of programs are left behind")
