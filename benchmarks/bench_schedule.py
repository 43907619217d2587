"""How much of a server's time the collector uses: the real collector on servers in virtual time.

    python -m benchmarks.bench_schedule --out schedule.json

Servers decode token by token with continuous batching: at most 256 sequences at once, 10 ms a step and 0.04 ms for each sequence, twice
that for a larger model. Nothing sleeps: an event loop with a clock of its own jumps from one event to the next, so seconds are those of the
model and repeat to the last digit. The same calls are given to an ideal scheduler, which asks for every call the moment that the one before
is done, and to lock step, where every round waits for its slowest call. Agents, prompts and environment do next to nothing; turns per CPU
second are those of the collector itself, with team, environment and server around it.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.virtual_time import (
    Call,
    Server,
    VirtualEngine,
    VirtualEnvExecutor,
    VirtualSteppedEngine,
    free_running_seconds,
    lock_step_seconds,
    run_virtually,
)
from benchmarks.workload import AnyText, table
from drmas_pl.agent import Agent
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.parsing import Parsed
from drmas_pl.prompts import Prompt, Template
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.team import Move, Team
from drmas_pl.types import GenerationRequest, Observation, Task, Trajectory

GOAL_IDEAL = 1.05
GOAL_BUSIER = 1.1
GOAL_SEARCHES = 1.1
GOAL_TURNS_PER_SECOND = 5000
# distinct lengths of responses
_LENGTHS = 1 << 14


@dataclass(frozen=True, slots=True)
class Case:
    """What is played.

    Attributes:
        name: Heading.
        tasks: Number of tasks.
        samples: Trajectories per task.
        calls: Fewest and most calls of a trajectory, every number equally likely.
        median: Tokens of a response.
        sigma: Standard deviation of the logarithm of its tokens.
        longest: Largest number of tokens.
        servers: One for each of the agents that speak in turn.
        search: Seconds that the environment takes for every action but the last.
        stepped: Whether the engine computes in the collector's process, which steps it.
        env_latency: Steps of such an engine after which a trajectory goes on whose environment step ran beside it.
    """

    name: str
    tasks: int
    samples: int
    calls: tuple[int, int]
    median: float
    sigma: float
    longest: int
    servers: tuple[Server, ...] = (Server(),)
    search: float = 0.0
    stepped: bool = False
    env_latency: int = 16

    @property
    def trajectories(self) -> int:
        """Number of trajectories."""
        return self.tasks * self.samples


SEARCH = Case("search", 80, 8, (2, 9), 80, 0.8, 1024)
MATH = Case("math", 32, 8, (2, 4), 900, 0.9, 4096)
# a model twice as large as the other agent's
LARGER = Server(step=0.020, per_sequence=0.00008)
CASES = (
    SEARCH,
    MATH,
    replace(SEARCH, name="search, two models", servers=(LARGER, Server())),
    replace(SEARCH, name="search of 0.2 s", search=0.2),
    replace(SEARCH, name="search of 0.2 s, in process", search=0.2, stepped=True),
    replace(SEARCH, name="10,000 trajectories", tasks=1250),
)


class _Env(TextEnv):
    """Ends after as many actions as its seed says."""

    seconds = 0.0

    def __init__(self, calls: tuple[int, int], search: float) -> None:
        super().__init__()
        self.calls = calls
        self.search = search

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin, without a random generator of its own."""
        fewest, most = self.calls
        self.left = fewest + (seed or 0) % (most - fewest + 1)
        _Env.seconds = 0.0
        return super().reset(options=options)

    def begin(self, task: Task) -> str:
        return task.question

    def act(self, action: str) -> StepResult:
        self.left -= 1
        _Env.seconds = self.search if self.left else 0.0
        return StepResult("", terminated=not self.left)


class _Relay(Team):
    """Its agents speak one after the other, and whatever they say is done."""

    def begin(self) -> tuple[str, ...]:
        return self.possible_agents

    def play(self, agent: str, parsed: Parsed) -> Move:
        again = self.possible_agents if agent == self.possible_agents[-1] else ()
        return Move(again, parsed.action)


class _Silent(Agent):
    """Has one prompt and hears nothing, so that no tokenizer is timed."""

    grammar = AnyText()
    templates = {"full": Template(user="{question}", chat=False)}

    def render(self, observation: Observation) -> Prompt:
        return Prompt((1, 2, 3), False)

    def decode(self, ids: tuple[int, ...]) -> str:
        return "text"


def response_lengths(case: Case) -> Callable[[GenerationRequest], int]:
    """Return what gives a request its number of tokens, by its seed alone."""
    drawn = np.random.default_rng(0).lognormal(np.log(case.median), case.sigma, _LENGTHS)
    lengths = [int(length) for length in np.clip(np.rint(drawn), 1, case.longest)]
    return lambda request: lengths[request.seed % _LENGTHS]


def play(case: Case) -> tuple[list[Trajectory], float, float]:
    """Play a case, and return its trajectories, the virtual seconds and the CPU seconds that it took."""
    names = tuple(f"agent{number}" for number in range(len(case.servers)))
    grammars = {name: AnyText() for name in names}
    kind = type("Relay", (_Relay,), {"possible_agents": names, "grammars": grammars})
    collector = Collector(
        kind(_Env(case.calls, case.search)),
        {name: _Silent(name) for name in names},
        env_latency=case.env_latency,
        env_executor=(lambda: VirtualEnvExecutor(lambda: _Env.seconds)) if case.search else None,
    )
    tasks = [Task(f"task-{number:05}", "question") for number in range(case.tasks)]
    length = response_lengths(case)
    engine = VirtualSteppedEngine if case.stepped else VirtualEngine
    # what was left behind before is not this case's to clean up
    gc.collect()
    started = time.process_time()
    trajectories, seconds = run_virtually(
        lambda: collector.collect_async(
            tasks,
            {name: engine(server, length) for name, server in zip(names, case.servers)},
            Phase("bench", samples=case.samples),
        )
    )
    return trajectories, seconds, time.process_time() - started


def calls_of(trajectories: Sequence[Trajectory], case: Case) -> list[list[Call]]:
    """Return what the trajectories asked of servers, and where they paused."""
    return [
        [
            Call(
                turn.index % len(case.servers),
                len(turn.response_ids),
                case.search if turn.index < len(trajectory.turns) - 1 else 0.0,
            )
            for turn in trajectory.turns
        ]
        for trajectory in trajectories
    ]


def measure(case: Case) -> dict[str, Any]:
    """Play a case and compare it.

    Returns:
        The case, seconds of the collector, of the ideal scheduler, of lock step and of the busier server alone, those without searches,
        turns, and turns per CPU second.
    """
    trajectories, seconds, cpu = play(case)
    calls = calls_of(trajectories, case)
    turns = sum(map(len, calls))
    alone = [
        free_running_seconds(
            [[replace(call, server=0) for call in found if call.server == at] for found in calls], [server]
        )
        for at, server in enumerate(case.servers)
    ]
    without = [[replace(call, pause=0.0) for call in found] for found in calls]
    return {
        **asdict(case),
        "trajectories": case.trajectories,
        "turns": turns,
        "seconds": seconds,
        "ideal": free_running_seconds(calls, case.servers),
        "lock_step": lock_step_seconds(calls, case.servers),
        "busier": max(alone),
        "without_searches": free_running_seconds(without, case.servers),
        "turns_per_second": turns / cpu,
    }


def render(records: Sequence[dict[str, Any]]) -> str:
    """Format the records, and say which goals are met."""
    lines = [
        (
            record["name"],
            f"{record['trajectories']:,}",
            f"{record['turns']:,}",
            f"{record['seconds']:.1f}",
            f"{record['seconds'] / record['ideal']:.3f}",
            f"{record['lock_step'] / record['seconds']:.2f}",
            f"{record['turns_per_second']:,.0f}",
        )
        for record in records
    ]
    head = (
        "case",
        "trajectories",
        "turns",
        "virtual s",
        "against ideal",
        "lock step against it",
        "turns/CPU s",
    )
    return "\n".join([table(head, lines), *(line for record in records for line in _goals(record))])


def _goals(record: dict[str, Any]) -> list[str]:
    ratios = [("the ideal scheduler's time", record["seconds"] / record["ideal"], GOAL_IDEAL)]
    if len(record["servers"]) > 1:
        ratios.append(("the busier server's own time", record["seconds"] / record["busier"], GOAL_BUSIER))
    if record["search"]:
        part = record["seconds"] / record["without_searches"]
        ratios.append(("the time without searches", part, GOAL_SEARCHES))
    lines = [
        f"{record['name']}: goal (at most {goal} × {what}): {ratio:.3f}, {_verdict(ratio <= goal)}"
        for what, ratio, goal in ratios
    ]
    if record["trajectories"] >= 10_000:
        rate = record["turns_per_second"]
        lines.append(
            f"{record['name']}: goal ({GOAL_TURNS_PER_SECOND:,} turns per CPU second): {rate:,.0f}, "
            f"{_verdict(rate >= GOAL_TURNS_PER_SECOND)}"
        )
    return lines


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Play with the real collector on servers in virtual time.")
    parser.add_argument("--divide", type=int, default=1, help="play this many times fewer tasks")
    parser.add_argument(
        "--env-latency", type=int, default=16, help="rollout.env_latency of the case in process"
    )
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    options = parser.parse_args(argv)
    records = [
        measure(replace(case, tasks=max(case.tasks // options.divide, 1), env_latency=options.env_latency))
        for case in CASES
    ]
    print(render(records))
    if options.out:
        options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
