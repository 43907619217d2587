"""Say how the arithmetic team plays: what the warm-up prints, and what its README quotes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from drmas_pl.agents.loop import LoopTeam, Solver, Verifier
from drmas_pl.data.readers import read_tasks
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.envs.math import MathEnv
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.trainer.metrics import collection_metrics
from drmas_pl.types import Trajectory


def report(policy: nn.Module, tokenizer: Any, *, split: str = "validation", samples: int = 4) -> list[str]:
    """Play one split with the loop, sampled and greedily.

    Args:
        policy: The model of both roles.
        tokenizer: Its tokenizer.
        split: Which of the shipped splits.
        samples: Trajectories per task of the sampled pass.

    Returns:
        Two lines for people.
    """
    sampling = {"max_new_tokens": 64}
    agents = {
        "solver": Solver("solver", template="compact", sampling=sampling).bind(policy, tokenizer),
        "verifier": Verifier("verifier", template="compact", sampling=sampling).bind(policy, tokenizer),
    }
    tasks = read_tasks(f"embedded:math/{split}")
    engine = TransformersEngine(policy, tokenizer)
    engines = dict.fromkeys(agents, engine)
    collector = Collector(LoopTeam(MathEnv(tasks)), agents)
    sampled = collector.collect(tasks, engines, Phase("report", samples=samples))
    greedy = collector.collect(tasks, engines, Phase("report", sampling={"temperature": 0.0}))
    return [
        f"{split} {name:7s} {summarise(played)}"
        for name, played in (("sampled", sampled), ("greedy", greedy))
    ]


def summarise(played: Sequence[Trajectory]) -> str:
    """Describe trajectories of the loop in one line: success, first attempts, the verifier on them, validity, success per level."""
    turns = [turn for trajectory in played for turn in trajectory.turns]
    metrics = collection_metrics("report", played, (), declared=LoopTeam.metric_info)
    approves, rejects = (
        metrics.get(f"report/{name}", math.nan)
        for name in ("verifier_approves_correct", "verifier_rejects_wrong")
    )
    sources = sorted({trajectory.task.data_source for trajectory in played})
    levels = "  ".join(
        f"{source.rsplit('/', 1)[-1]} {_mean([trajectory.success for trajectory in played if trajectory.task.data_source == source]):.3f}"
        for source in sources
    )
    return (
        f"success {_mean([trajectory.success for trajectory in played]):.3f}  "
        f"first attempt {metrics['report/first_attempt_correct']:.3f}  "
        f"verifier approves right {approves:.3f}, rejects wrong {rejects:.3f}, balanced {(approves + rejects) / 2:.3f}  "
        f"rounds {metrics['report/rounds']:.2f}  valid {_mean([turn.parsed.valid for turn in turns]):.4f}  {levels}"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
