"""Seconds of a rollout with a real server: trajectories that wait for each other, and such that do not.

    python -m benchmarks.bench_server --engine-python ~/sglang-cpu/bin/python --model smollm2-135m --out server.json

One sglang server on the CPU plays the same conversations both ways, in turns: in lock step, where every round waits for its slowest
response, and as the collector plays, where each trajectory goes on with its own answer. Seeds are the same in all runs, responses end
where the model ends them or at the cap, and the server's cache of prefixes is emptied before each run. Both ways send single requests
through the same engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.workload import AnyText, make_prompts, table
from drmas_pl.agent import Agent
from drmas_pl.engines.base import Engine
from drmas_pl.engines.sglang.engine import SglangEngine
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.models.loading import load_model
from drmas_pl.parsing import Parsed
from drmas_pl.prompts import Template
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.team import Move, Team
from drmas_pl.types import Completion, GenerationRequest, SamplingParams, Task


class Conversation(TextEnv):
    """Asks again as often as its seed says.

    Args:
        fewest: Smallest number of answers.
        most: Largest number of answers.
    """

    def __init__(self, fewest: int, most: int) -> None:
        super().__init__()
        self.fewest = fewest
        self.most = most

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin, with the number of answers that the seed says."""
        self.left = self.fewest + (seed or 0) % (self.most - self.fewest + 1)
        return super().reset(options=options)

    def begin(self, task: Task) -> str:
        return task.question

    def act(self, action: str) -> StepResult:
        self.left -= 1
        return StepResult("Is that so?", terminated=not self.left)


class Talk(Team):
    """One agent speaks until the environment ends."""

    possible_agents = ("talker",)

    def begin(self) -> tuple[str, ...]:
        return self.possible_agents

    def play(self, agent: str, parsed: Parsed) -> Move:
        return Move(self.possible_agents, parsed.action)


class Talker(Agent):
    """Sees the question and what was said."""

    grammar = AnyText()
    templates = {"full": Template(user="{question} {history}", formats={"text": "{text}"})}


class LockStep(Engine):
    """Answers nobody before everybody.

    Args:
        engine: Generates the batches.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.context_length = engine.context_length

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Continue every prompt once; see :meth:`Engine.generate`."""
        return self.engine.generate(requests)


def compare(
    engine: Engine,
    collector: Collector,
    tasks: Sequence[Task],
    *,
    samples: int,
    repeats: int,
) -> dict[str, list[dict[str, Any]]]:
    """Play both ways in turns.

    Args:
        engine: Awake.
        collector: Of one agent, ``talker``.
        tasks: What to play.
        samples: Trajectories per task.
        repeats: How often each way is played.

    Returns:
        Seconds, calls and tokens of every run, for each way.
    """
    ways: list[tuple[str, Engine]] = [("lock step", LockStep(engine)), ("each for itself", engine)]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in ways}
    for repeat in range(repeats):
        for name, way in ways if repeat % 2 == 0 else reversed(ways):
            # the weights are the same, but with new ones a server forgets prefixes
            engine.sync(engine.weights_version + 1)
            start = time.monotonic()
            played = collector.collect(tasks, {"talker": way}, Phase("bench", samples=samples))
            seconds = time.monotonic() - start
            turns = [turn for trajectory in played for turn in trajectory.turns]
            tokens = sum(len(turn.response_ids) for turn in turns)
            found[name].append({"seconds": seconds, "calls": len(turns), "tokens": tokens})
            print(f"{name}: {seconds:.1f} s, {len(turns)} calls, {tokens} tokens", flush=True)
    return found


def measure(words: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Start a server and play; see :func:`compare`."""
    model, tokenizer = load_model(words.model, dtype="float32")
    engine = SglangEngine(
        model,
        tokenizer,
        python=words.engine_python,
        server=ServerSettings(
            device="cpu",
            memory_fraction=0.5,
            max_total_tokens=words.cache_tokens,
            environment={"OMP_NUM_THREADS": words.threads},
        ),
        probe_tolerance=1e-2,
    )
    agent = Talker("talker", sampling=SamplingParams(max_new_tokens=words.cap))
    agent.bind(model, tokenizer, end_ids=engine.stop_token_ids)
    collector = Collector(Talk(Conversation(*words.calls)), {"talker": agent})
    texts = make_prompts(tokenizer, words.tasks, tokens=64)
    tasks = [Task(f"t{at}", text["text"]) for at, text in enumerate(texts)]
    try:
        engine.wake()
        engine.generate([GenerationRequest((1, 2, 3), SamplingParams(max_new_tokens=8), seed=0)])
        return compare(engine, collector, tasks, samples=words.samples, repeats=words.repeats)
    finally:
        engine.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--calls", type=int, nargs=2, default=(2, 4))
    parser.add_argument("--cap", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache-tokens", type=int, default=32768)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args(arguments)
    found = measure(words)
    rows = [
        [
            name,
            f"{statistics.median(run['seconds'] for run in runs):.1f}",
            str(runs[0]["calls"]),
            str(runs[0]["tokens"]),
        ]
        for name, runs in found.items()
    ]
    print(table(["way", "seconds (median)", "calls", "tokens"], rows))
    lock, free = (statistics.median(run["seconds"] for run in runs) for runs in found.values())
    print(f"lock step takes {lock / free:.2f} times as long")
    if words.out is not None:
        words.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
