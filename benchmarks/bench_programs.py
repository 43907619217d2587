"""CPU time of a program's calls, by the way in which they reach their agents: ``python -m benchmarks.bench_programs``.

All programs run at the same time and are answered from a script, so that what is left is what calls cost. ``plain`` asks the agents
themselves; the others pay for the endpoint besides, in process or through a socket, and for the library that asks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.program import ChatAgent, ProgramEnv, ProgramTeam
from drmas_pl.program.calls import in_loop
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.testing import tiny_policy
from drmas_pl.types import Task

CALLS = 6
QUESTION = "What is 12 + 30? Answer with the number alone."
REQUEST = json.dumps({"model": "solver", "messages": [{"role": "user", "content": QUESTION}]}).encode()


async def plain(task: Task, agents: Any) -> None:
    """Ask the agent itself."""
    for _ in range(CALLS):
        await agents["solver"].ask(QUESTION)


async def endpoint(task: Task, agents: Any) -> None:
    """Hand requests to the endpoint."""
    for _ in range(CALLS):
        await agents._endpoint.respond("/v1/chat/completions", REQUEST)


async def client(task: Task, client: Any) -> None:
    """Ask with the openai library, in process."""
    for _ in range(CALLS):
        await client.chat.completions.create(**json.loads(REQUEST))


async def http(task: Task, address: Any) -> None:
    """Send requests through a socket."""
    headers = {"authorization": f"Bearer {address.secret}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(CALLS):
            async with session.post(f"{address.url}/chat/completions", data=REQUEST) as response:
                await response.json()


async def left() -> int:
    """Return how many tasks of programs are still there."""
    return len([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])


def measure(program: Any, programs: int, workers: int) -> float:
    """Return milliseconds of CPU time per call."""
    policy, tokenizer = tiny_policy()
    agents = {"solver": ChatAgent("solver").bind(policy, tokenizer)}
    team = ProgramTeam(ProgramEnv(program), names=["solver"])
    tasks = [Task(f"t{number}", "?") for number in range(programs)]
    collector = Collector(team, agents, env_workers=workers)
    began = time.process_time()
    engine = ScriptedEngine(lambda prompt: "42", tokenizer)
    played = collector.collect(tasks, {"solver": engine}, Phase("train"))
    spent = time.process_time() - began
    assert sum(len(one.turns) for one in played) == programs * CALLS
    return 1000 * spent / (programs * CALLS)


def main(words: Sequence[str] | None = None) -> int:
    """Measure every way and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    arguments = parser.parse_args(words)
    measure(plain, 20, 0)
    ways = {"plain": (plain, 0), "endpoint": (endpoint, 0), "client": (client, 0), "http": (http, 64)}
    spent = {name: measure(program, arguments.programs, workers) for name, (program, workers) in ways.items()}
    for name, milliseconds in spent.items():
        print(f"{name:10}{milliseconds:8.3f} ms CPU per call{milliseconds - spent['plain']:+9.3f}")
    print(f"tasks left {in_loop(left()).result()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
