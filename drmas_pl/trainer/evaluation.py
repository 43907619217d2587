"""Validation and test: avg@k and pass@k, over tasks, overall and per data source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import torch

from drmas_pl.engines.base import Engine
from drmas_pl.functional.evaluation import avg_at_k, mean_pass_at_k
from drmas_pl.functional.grouping import encode
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.trainer.metrics import Number, collection_metrics
from drmas_pl.trainer.settings import EvaluationSettings
from drmas_pl.types import Task, Trajectory

GREEDY: Final = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of one evaluation.

    Attributes:
        sampled: avg@k of the sampled pass, over tasks with a sample that did not fail; None without any.
        greedy: Success of the greedy pass; None when it was not played, or failed altogether.
        pass_at: pass@k by k, over tasks with k samples that did not fail; a k for which there is none is absent.
        sources: For each data source ``sampled``, ``greedy`` and ``pass@k``, with the number of ``tasks`` that count in ``sampled`` and
            of ``pass@k_tasks`` that count in ``pass@k``.
        calls: Mean calls per sampled trajectory, by agent.
        metrics: All of this and everything else by its logged name, ``phase/…``.
        failed: Number of failed trajectories; they count in nothing else.
        trajectories: What was played, the greedy pass last.
    """

    sampled: float | None
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
    iteration: int | None = None,
) -> Evaluation:
    """Play every task and score it.

    Args:
        collector: Plays the team.
        tasks: Tasks of one split.
        engines: Awake engine by agent name.
        settings: Samples, sampling and values of k.
        phase: ``validation`` or ``test``; part of metric names and seeds.
        seed: Run seed; the same seed draws the same samples in every evaluation.
        iteration: Completed training iterations, for the trajectories' record.

    Raises:
        ValueError: There are no tasks.
    """
    if not tasks:
        raise ValueError(f"cannot evaluate {phase}: the split has no tasks")
    options: dict[str, Any] = {"seed": seed, "retries": settings.retries}
    sampled = Phase(phase, samples=settings.samples, sampling=settings.sampling, **options)
    passes = {phase: collector.collect(tasks, engines, sampled)}
    if settings.greedy:
        greedy = Phase(f"{phase}-greedy", sampling=GREEDY, **options)
        passes[greedy.name] = collector.collect(tasks, engines, greedy)
    agents = list(collector.agents)
    metrics = dict[str, float]()
    for name, trajectories in passes.items():
        summary = collection_metrics(
            name, trajectories, agents, declared=collector.team.declared_metrics(), average=over_tasks
        )
        metrics |= summary | _scores(name, trajectories, settings.pass_at if name == phase else ())
    sources = sorted({task.data_source for task in tasks})
    return Evaluation(
        sampled=metrics.get(f"{phase}/success"),
        greedy=metrics.get(f"{phase}-greedy/success"),
        pass_at={k: metrics[f"{phase}/pass@{k}"] for k in settings.pass_at if f"{phase}/pass@{k}" in metrics},
        sources={source: _source_scores(phase, source, metrics, settings.pass_at) for source in sources},
        calls={
            agent: metrics[f"{phase}/{agent}/calls"]
            for agent in agents
            if f"{phase}/{agent}/calls" in metrics
        },
        metrics=metrics,
        failed=sum(trajectory.failed for played in passes.values() for trajectory in played),
        trajectories=tuple(
            replace(trajectory, phase=phase, iteration=iteration)
            for played in passes.values()
            for trajectory in played
        ),
    )


def over_tasks(trajectories: Sequence[Trajectory], number: Number) -> float:
    """Average the tasks' averages of a number, as avg@k does.

    Args:
        trajectories: At least one.
        number: Gives the number of each.
    """
    values = torch.tensor([float(number(trajectory)) for trajectory in trajectories], dtype=torch.float64)
    return float(avg_at_k(values, encode([trajectory.task.id for trajectory in trajectories])))


def _scores(phase: str, trajectories: Sequence[Trajectory], pass_at: Sequence[int]) -> dict[str, float]:
    """Score a pass overall and per data source; what no task has enough samples for is left out."""
    played = [trajectory for trajectory in trajectories if not trajectory.failed]
    out = {f"{phase}/{name}": value for name, value in _success_rates(played, pass_at).items()}
    for source in sorted({trajectory.task.data_source for trajectory in trajectories}):
        own = [trajectory for trajectory in played if trajectory.task.data_source == source]
        rates = _success_rates(own, pass_at)
        out |= {f"{phase}/source/{source}/{name}": value for name, value in rates.items()}
    return out


def _success_rates(played: Sequence[Trajectory], pass_at: Sequence[int]) -> dict[str, float]:
    """avg@k and pass@k with the number of tasks that each counts: those with one sample left after faults, or k."""
    left = Counter(trajectory.task.id for trajectory in played)
    out = {"tasks": float(len(left))}
    if played:
        out["success"] = over_tasks(played, lambda trajectory: trajectory.success)
    for k in pass_at:
        enough = [trajectory for trajectory in played if left[trajectory.task.id] >= k]
        out[f"pass@{k}_tasks"] = float(sum(samples >= k for samples in left.values()))
        if enough:
            success = torch.tensor([trajectory.success for trajectory in enough])
            task = encode([trajectory.task.id for trajectory in enough])
            out[f"pass@{k}"] = float(mean_pass_at_k(success, task, k=k))
    return out


def _source_scores(
    phase: str, source: str, metrics: Mapping[str, float], pass_at: Sequence[int]
) -> dict[str, float]:
    """Collect the scores of one data source from the logged metrics."""
    place = f"/source/{source}/"
    names = {"sampled": f"{phase}{place}success", "greedy": f"{phase}-greedy{place}success"}
    for name in ("tasks", *(f"pass@{k}{what}" for k in pass_at for what in ("", "_tasks"))):
        names[name] = f"{phase}{place}{name}"
    return {name: metrics[logged] for name, logged in names.items() if logged in metrics}
