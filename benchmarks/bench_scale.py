"""Time everything in an iteration but the models, against tasks, group size, agents, turns, worker groups and trajectories at a time.

    python -m benchmarks.bench_scale --out scale.json

Scripted engines answer at once, the environment is a counter, and prompts show the last utterance alone, so that a turn costs the same
however long its episode is. Play is measured from tasks to trajectories, with prompts rendered and texts tokenised; learn is what lies
between trajectories and the update: checks, table, advantages, rows and metrics; record is writing the trajectories to a file. Figures
are CPU seconds on one thread, medians of interleaved repeats; garbage is collected before each part.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.workload import AnyText, Speaker, table
from drmas_pl.agent import Agent
from drmas_pl.algorithms.estimators import GroupNormalizer
from drmas_pl.algorithms.token_batch import TrainingRow, training_rows
from drmas_pl.algorithms.turn_batch import build_turn_batch
from drmas_pl.data.recorded import write_trajectories
from drmas_pl.engines.base import Engine
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.parsing import Parsed
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.rollout.dynamic_sampling import check_rollout
from drmas_pl.team import Move, Team
from drmas_pl.testing import tiny_tokenizer
from drmas_pl.trainer.metrics import collection_metrics, health_metrics, signal_metrics
from drmas_pl.types import Message, Task, Trajectory

GOAL_TURNS_PER_SECOND = 5000
GOAL_FLATNESS = 0.2
GOAL_GROUP_OVERHEAD = 0.05
PARTS = ("play", "learn", "record")


@dataclass(frozen=True, slots=True)
class Size:
    """One point of a sweep.

    Attributes:
        tasks: Tasks of the iteration.
        samples: Trajectories per task.
        agents: Agents that speak in turn.
        turns: Turns of every trajectory.
        concurrent: Trajectories at a time; None plays all at once.
        engines: Worker groups among which the agents are divided.
    """

    tasks: int = 250
    samples: int = 8
    agents: int = 2
    turns: int = 8
    concurrent: int | None = None
    engines: int = 1

    @property
    def trajectories(self) -> int:
        """Number of trajectories."""
        return self.tasks * self.samples


SWEEPS: dict[str, tuple[Size, ...]] = {
    "trajectories": tuple(Size(tasks=tasks, samples=10) for tasks in (10, 50, 200, 500)),
    "tasks": tuple(Size(tasks=tasks) for tasks in (25, 100, 400)),
    "samples": tuple(Size(tasks=1000 // samples, samples=samples) for samples in (4, 16, 64)),
    "agents": tuple(Size(tasks=100, agents=agents) for agents in (1, 2, 4, 8)),
    "turns": tuple(Size(tasks=64 // turns * 8, turns=turns) for turns in (2, 8, 32)),
    "concurrent": tuple(Size(concurrent=concurrent) for concurrent in (50, 500, None)),
    "engines": tuple(Size(engines=engines) for engines in (1, 2)),
}


class _Counter(TextEnv):
    """Ends after ``turns`` actions; solved by an even digit at the end of the last one."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.turns = turns

    def begin(self, task: Task) -> str:
        self.done = 0
        return task.question

    def act(self, action: str) -> StepResult:
        self.done += 1
        over = self.done == self.turns
        even = over and int(action[-1]) % 2 == 0
        return StepResult("", float(even), terminated=over, success=even)


class _Relay(Team):
    """Its agents speak one after the other, over and over, each shown the last utterance."""

    def begin(self) -> tuple[str, ...]:
        return self.possible_agents

    def play(self, agent: str, parsed: Parsed) -> Move:
        again = self.possible_agents if agent == self.possible_agents[-1] else ()
        return Move(again, parsed.action, (Message(agent, "text", parsed.action),))

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        return tuple(self.history[-2:])


def make_team(size: Size) -> Team:
    """Build a relay of the size's agents."""
    names = tuple(f"agent{number}" for number in range(size.agents))
    kind = type(
        "Relay", (_Relay,), {"possible_agents": names, "grammars": {name: AnyText() for name in names}}
    )
    return kind(_Counter(size.turns))


def reply(prompt: str, seed: int) -> str:
    """Say something of a dozen words that differs between samples.

    >>> reply("", seed=17)
    'the number after some thought and a second look must be 7'
    """
    return f"the number after some thought and a second look must be {seed % 10}"


class Bench:
    """One size, ready to be timed."""

    def __init__(self, size: Size) -> None:
        self.size = size
        tokenizer = tiny_tokenizer()
        team = make_team(size)
        self.agents: dict[str, Agent] = {
            name: Speaker(name).bind(torch.nn.Identity(), tokenizer) for name in team.possible_agents
        }
        scripted = [ScriptedEngine(reply, tokenizer) for _ in range(size.engines)]
        self.engines: Mapping[str, Engine] = {
            name: scripted[place % size.engines] for place, name in enumerate(self.agents)
        }
        self.collector = Collector(team, self.agents, max_calls=size.turns, max_concurrent=size.concurrent)
        self.tasks = [
            Task(f"task-{number}", f"which digit follows {number}?", ("4",), "bench")
            for number in range(size.tasks)
        ]
        self.estimator = GroupNormalizer()

    def play(self) -> list[Trajectory]:
        """Play the iteration."""
        return self.collector.collect(self.tasks, self.engines, Phase("train", samples=self.size.samples))

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, list[TrainingRow]]:
        """Do what a trainer does between play and update."""
        check_rollout(trajectories, samples=self.size.samples, versions=dict.fromkeys(self.agents, 0))
        rows = build_turn_batch(trajectories, self.agents)
        advantage = self.estimator(rows)
        found = training_rows(rows, advantage, align_turns={}, seed=0)
        collection_metrics("train", trajectories, list(self.agents))
        health_metrics(rows)
        signal_metrics(rows, advantage, self.estimator.scopes)
        return found

    def run(self, folder: Path) -> dict[str, float]:
        """Return the CPU seconds of every part."""
        seconds = {}
        seconds["play"], trajectories = _clock(self.play)
        seconds["learn"], rows = _clock(lambda: self.learn(trajectories))
        seconds["record"], _ = _clock(lambda: write_trajectories(folder / "trajectories.jsonl", trajectories))
        turns = sum(len(trajectory.turns) for trajectory in trajectories)
        if turns != self.size.trajectories * self.size.turns or not sum(map(len, rows.values())):
            raise SystemExit(f"{turns} turns in {len(trajectories)} trajectories; expected {self.size}")
        return seconds


def _clock(run: Callable[[], Any]) -> tuple[float, Any]:
    # so that no part pays for what another one left behind
    gc.collect()
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def measure(sizes: Iterable[Size], *, repeats: int) -> list[dict[str, Any]]:
    """Time sizes in turn, ``repeats`` times over, after a short run that is not counted.

    Returns:
        A record of each size: its fields, microseconds per turn of every part, and turns per second of play.
    """
    benches = [Bench(size) for size in sizes]
    seconds: list[list[dict[str, float]]] = [[] for _ in benches]
    with tempfile.TemporaryDirectory() as folder:
        Bench(replace(benches[0].size, tasks=1)).run(Path(folder))
        for _ in range(repeats):
            for bench, runs in zip(benches, seconds):
                runs.append(bench.run(Path(folder)))
    records = []
    for bench, runs in zip(benches, seconds):
        turns = bench.size.trajectories * bench.size.turns
        micro = {part: 1e6 * statistics.median(run[part] for run in runs) / turns for part in PARTS}
        record = {
            **asdict(bench.size),
            "trajectories": bench.size.trajectories,
            "microseconds": micro,
            "seconds": runs,
        }
        records.append({**record, "turns_per_second": 1e6 / micro["play"]})
    return records


def spread(values: Sequence[float]) -> float:
    """Return by how much the extremes leave the middle between them.

    >>> spread([8.0, 12.0, 9.0])
    0.2
    """
    low, high = min(values), max(values)
    return (high - low) / (high + low)


def render(sweeps: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Format the sweeps: microseconds per turn, and how flat they are."""
    lines = []
    for axis, records in sweeps.items():
        for record in records:
            cells = [f"{record['microseconds'][part]:.1f}" for part in PARTS]
            value = "all" if record[axis] is None else f"{record[axis]:,}"
            lines.append(
                (
                    f"{axis} {value}",
                    f"{record['trajectories']:,}",
                    *cells,
                    f"{record['turns_per_second']:,.0f}",
                )
            )
    text = [table(("size", "trajectories", *(f"{part} µs/turn" for part in PARTS), "turns/s"), lines)]
    for axis, records in sweeps.items():
        cells = [
            f"{part} ±{spread([record['microseconds'][part] for record in records]):.0%}" for part in PARTS
        ]
        text.append(f"{axis}: {', '.join(cells)}")
    return "\n".join([*text, *_goals(sweeps)])


def _goals(sweeps: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Say which goals are met among those that the sweeps tell about."""
    lines = []
    if "engines" in sweeps:
        one, two = (record["microseconds"]["play"] for record in sweeps["engines"][:2])
        met = two <= (1 + GOAL_GROUP_OVERHEAD) * one
        lines.append(
            f"goal (a second worker group costs at most {GOAL_GROUP_OVERHEAD:.0%}): {two / one - 1:+.1%}, {_verdict(met)}"
        )
        rate = sweeps["engines"][0]["turns_per_second"]
        lines.append(
            f"goal ({GOAL_TURNS_PER_SECOND:,} turns/s): {rate:,.0f}, {_verdict(rate >= GOAL_TURNS_PER_SECOND)}"
        )
    for part in ("play", "learn") if "trajectories" in sweeps else ():
        found = spread([record["microseconds"][part] for record in sweeps["trajectories"]])
        lines.append(
            f"goal ({part} per turn flat within {GOAL_FLATNESS:.0%}): {found:.0%}, {_verdict(found <= GOAL_FLATNESS)}"
        )
    return lines


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Time an iteration without its models at many sizes.")
    parser.add_argument(
        "--sweeps", nargs="+", choices=tuple(SWEEPS), default=list(SWEEPS), help="what to vary"
    )
    parser.add_argument("--divide", type=int, default=1, help="play this many times fewer tasks")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each size")
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    sweeps = {}
    for axis in options.sweeps:
        sizes = [replace(size, tasks=max(size.tasks // options.divide, 1)) for size in SWEEPS[axis]]
        sweeps[axis] = measure(sizes, repeats=options.repeats)
    print(render(sweeps))
    if options.out:
        options.out.write_text(json.dumps(sweeps, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
