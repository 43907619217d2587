"""Validation and test: avg@k and pass@k, over tasks, overall and per data source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from drmas_pl.engines.base import Engine
from drmas_pl.functional.evaluation import avg_at_k, mean_pass_at_k
from drmas_pl.functional.grouping import encode
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.trainer.metrics import calls_per_agent, collection_metrics
from drmas_pl.trainer.settings import EvaluationSettings
from drmas_pl.types import Task, Trajectory


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of one evaluation.

    Attributes:
        sampled: avg@k of the sampled pass.
        greedy: Success of the greedy pass, or None when it was not played.
        pass_at: pass@k by k.
        sources: For each data source its number of tasks, ``sampled``, ``greedy`` and ``pass@k``.
        calls: Mean calls per sampled trajectory, by agent.
        metrics: Everything else, named ``phase/…``.
        failed: Number of failed trajectories; they count in nothing else.
        trajectories: What was played, the greedy pass last.
    """

    sampled: float
    greedy: float | None
    pass_at: Mapping[int, float]
    sources: Mapping[str, Mapping[str, float]]
    calls: Mapping[str, float]
    metrics: Mapping[str, float]
    failed: int = 0
    trajectories: tuple[Trajectory, ...] = field(default=(), repr=False)

    def scores(self) -> dict[str, Any]:
        """Return everything but the trajectories as plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "trajectories"}


def evaluate(
    collector: Collector,
    tasks: Sequence[Task],
    engines: Mapping[str, Engine],
    settings: EvaluationSettings,
    *,
    phase: str,
    seed: int,
) -> Evaluation:
    """Play every task and score it.

    Args:
        collector: Plays the team.
        tasks: Tasks of one split.
        engines: Awake engine by agent name.
        settings: Samples, sampling and values of k.
        phase: ``validation`` or ``test``; part of metric names and seeds.
        seed: Run seed; the same seed draws the same samples in every evaluation.

    Raises:
        ValueError: There are no tasks.
    """
    if not tasks:
        raise ValueError(f"cannot evaluate {phase}: the split has no tasks")
    sampled = collector.collect(
        tasks, engines, Phase(phase, seed, samples=settings.samples, sampling=settings.sampling)
    )
    greedy: list[Trajectory] = []
    if settings.greedy:
        options = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
        greedy = collector.collect(tasks, engines, Phase(f"{phase}-greedy", seed, sampling=options))
    agents = list(collector.agents)
    pass_at = {k: _pass(sampled, k) for k in settings.pass_at}
    metrics = collection_metrics(phase, sampled, agents) | {f"{phase}/success": _avg(sampled)}
    metrics |= {f"{phase}/pass@{k}": value for k, value in pass_at.items()}
    if settings.greedy:
        metrics |= collection_metrics(f"{phase}-greedy", greedy, agents) | {
            f"{phase}-greedy/success": _avg(greedy)
        }
    return Evaluation(
        sampled=_avg(sampled),
        greedy=_avg(greedy) if settings.greedy else None,
        pass_at=pass_at,
        sources={
            source: _source_scores(source, sampled, greedy, settings)
            for source in sorted({task.data_source for task in tasks})
        },
        calls=calls_per_agent(sampled, agents),
        metrics=metrics,
        failed=sum(trajectory.failed for trajectory in (*sampled, *greedy)),
        trajectories=(*sampled, *greedy),
    )


def _source_scores(
    source: str, sampled: Sequence[Trajectory], greedy: Sequence[Trajectory], settings: EvaluationSettings
) -> dict[str, float]:
    own = [trajectory for trajectory in sampled if trajectory.task.data_source == source]
    scores = {"tasks": float(len({trajectory.task.id for trajectory in own})), "sampled": _avg(own)}
    if greedy:
        scores["greedy"] = _avg(
            [trajectory for trajectory in greedy if trajectory.task.data_source == source]
        )
    return scores | {f"pass@{k}": _pass(own, k) for k in settings.pass_at}


def _played(trajectories: Sequence[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    played = [trajectory for trajectory in trajectories if not trajectory.failed]
    return torch.tensor([float(t.success) for t in played]), encode([t.task.id for t in played])


def _avg(trajectories: Sequence[Trajectory]) -> float:
    success, task = _played(trajectories)
    return float(avg_at_k(success, task)) if len(success) else 0.0


def _pass(trajectories: Sequence[Trajectory], k: int) -> float:
    """pass@k over the tasks that have at least k samples left after faults."""
    counts: dict[str, int] = {}
    for trajectory in trajectories:
        counts[trajectory.task.id] = counts.get(trajectory.task.id, 0) + (not trajectory.failed)
    success, task = _played([t for t in trajectories if counts[t.task.id] >= k])
    return float(mean_pass_at_k(success, task, k=k)) if len(success) else 0.0
