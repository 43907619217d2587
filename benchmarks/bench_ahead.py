"""Time iterations that play and learn in turns against those that play ahead.

    python -m benchmarks.bench_ahead --out ahead.json

Two agents with a small model each speak in turn. With a ``--latency`` their engines do nothing but answer after so many seconds, as far as
this process can tell like servers on devices of their own; with 0 they sample here, from a copy of the weights, and both sides compete for
this machine's cores. The update is real. Figures are wall-clock seconds per iteration, medians without the first and the last one, of which
one side never has a neighbour.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.workload import AnyText, Speaker, table
from drmas_pl.data.module import TaskDataModule
from drmas_pl.engines.base import Engine
from drmas_pl.engines.scripted import ScriptedEngine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.parsing import Parsed
from drmas_pl.team import Move, Team
from drmas_pl.testing import tiny_policy
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import Completion, GenerationRequest, Message, Task
from drmas_pl.workers.build import AgentBinding, build_groups
from drmas_pl.workers.learner import UpdateSettings

AGENTS = ("first", "second")
TURNS = 4


class _Even(TextEnv):
    """Ends after a few actions; solved by a last one whose characters have an even sum."""

    def begin(self, task: Task) -> str:
        self.left = TURNS // len(AGENTS)
        return task.question

    def act(self, action: str) -> StepResult:
        self.left -= 1
        even = sum(map(ord, action)) % 2 == 0
        return StepResult("", float(even and not self.left), terminated=not self.left, success=even)


class _Pair(Team):
    """Its agents speak one after the other; what the second one says is done."""

    possible_agents = AGENTS
    grammars = dict.fromkeys(AGENTS, AnyText())

    def begin(self) -> tuple[str, ...]:
        return AGENTS

    def play(self, agent: str, parsed: Parsed) -> Move:
        last = agent == AGENTS[-1]
        return Move(
            AGENTS if last else (), parsed.action if last else None, (Message(agent, "text", parsed.action),)
        )


class _Distant(ScriptedEngine):
    """Keeps its caller waiting, and says something of sixteen letters that differs between samples."""

    own_weights = True

    def __init__(self, tokenizer: Any, *, latency: float) -> None:
        super().__init__(lambda prompt, seed: f"{seed % 10**15:015d}", tokenizer, logprob=-5.0)
        self.latency = latency

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        time.sleep(self.latency)
        return super().generate(requests)


def make_engine(policy: Any, tokenizer: Any, *, latency: float) -> Engine:
    """Build an engine that answers after ``latency`` seconds, or one that computes here."""
    return (
        _Distant(tokenizer, latency=latency) if latency else TransformersEngine(policy, tokenizer, copy=True)
    )


def run(
    staleness: Literal[0, 1], latency: float, *, iterations: int, samples: int, width: int
) -> dict[str, Any]:
    """Train for some iterations and return what each of them took.

    Args:
        staleness: 0 in turns, 1 ahead.
        latency: Seconds that every batch takes; 0 computes here.
        iterations: Number of iterations, at least 3.
        samples: Trajectories per task, of which there are 4.
        width: Width of the models.
    """
    tasks = tuple(Task(f"task-{number}", f"what follows {number}?") for number in range(8))
    with tempfile.TemporaryDirectory() as folder:
        trainer = MultiAgentTrainer(
            max_iterations=iterations,
            output_dir=folder,
            rollout=RolloutSettings(samples=samples, max_staleness=staleness),
            evaluation=EvaluationSettings(greedy=False),
            accelerator="cpu",
        )
        # what distant engines say has made-up log-probs
        update = UpdateSettings(mismatch_alarm=float("inf"))
        bindings = [
            AgentBinding(
                Speaker(name, max_prompt_tokens=256, sampling={"max_new_tokens": 16}), "tiny", update=update
            )
            for name in AGENTS
        ]
        groups = build_groups(
            bindings,
            sharing="per_agent",
            fabric=trainer.fabric,
            load=lambda name: tiny_policy(seed=1, hidden_size=width, layers=4),
            engine=lambda group, policy, tokenizer: make_engine(policy, tokenizer, latency=latency),
        )
        trainer.fit(_Pair(_Even()), groups, TaskDataModule(train=tasks, tasks_per_iteration=4))
        records = [record for record in trainer.folder.read_metrics() if "time/update" in record][1:-1]
    seconds = [record["time/rollout"] + record["time/update"] for record in records]
    waited = statistics.median(record["time/rollout"] for record in records)
    return {
        "staleness": staleness,
        "latency": latency,
        "seconds": seconds,
        "median": statistics.median(seconds),
        "waited": waited,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--latency", type=float, nargs="+", default=[0.0, 0.1, 0.3], help="seconds that a batch takes"
    )
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8, help="trajectories per task")
    parser.add_argument("--width", type=int, default=256, help="width of the models")
    parser.add_argument("--out", type=Path, help="where to write all figures as JSON")
    options = parser.parse_args(argv)
    if options.iterations < 3:
        parser.error(f"--iterations must be at least 3, got {options.iterations}")
    torch.set_num_threads(1)
    size = {"iterations": options.iterations, "samples": options.samples, "width": options.width}
    records = [run(staleness, latency, **size) for latency in options.latency for staleness in (0, 1)]
    rows = []
    for turns, ahead in zip(records[::2], records[1::2], strict=True):
        figures = (turns["latency"], turns["median"], turns["waited"], ahead["median"], ahead["waited"])
        rows.append(
            [*(f"{figure:.2f}" for figure in figures), f"{1 - ahead['median'] / turns['median']:.0%}"]
        )
    print(table(["latency", "in turns, s", "of it rollout", "ahead, s", "of it rollout", "saved"], rows))
    if options.out is not None:
        options.out.write_text(json.dumps({"options": size, "records": records}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
