"""What an evaluation leaves behind: a table for people and a record from which it can be repeated."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import drmas_pl
from drmas_pl.config.build import Run
from drmas_pl.config.evaluation import EvaluationPlan
from drmas_pl.trainer.evaluate import Evaluation
from drmas_pl.trainer.state import template_hash


def evaluation_table(run: Run, result: Evaluation) -> str:
    """Return avg@k, pass@k and greedy, overall and per data source, then calls per agent."""
    settings = run.trainer.evaluation
    columns = [f"avg@{settings.samples}", *(f"pass@{k}" for k in settings.pass_at)]
    columns += ["greedy"] if result.greedy is not None else []
    rows = [[run.team.unwrapped.metric, "tasks", *columns]]
    for source, scores in result.sources.items():
        numbers = [scores.get("sampled"), *(scores.get(f"pass@{k}") for k in settings.pass_at)]
        numbers += [scores.get("greedy")] if result.greedy is not None else []
        rows.append([source, f"{scores['tasks']:.0f}", *_percents(numbers)])
    tasks = sum(scores["tasks"] for scores in result.sources.values())
    overall = [result.sampled, *(result.pass_at.get(k) for k in settings.pass_at)]
    overall += [result.greedy] if result.greedy is not None else []
    rows.append(["all", f"{tasks:.0f}", *_percents(overall)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    lines += ["", *(f"calls of {agent:<{widths[0]}} {calls:.2f}" for agent, calls in result.calls.items())]
    return "\n".join(
        [
            *lines,
            *(
                [f"\n{result.failed} of {len(result.trajectories)} trajectories failed and count in nothing"]
                if result.failed
                else []
            ),
        ]
    )


def evaluation_record(run: Run, result: Evaluation, plan: EvaluationPlan) -> dict[str, Any]:
    """Return everything that is needed to compare this evaluation with another one, or to repeat it."""
    settings, data, config, split = run.trainer.evaluation, run.data, plan.config, plan.request.split
    agents = {name: (group, agent) for group in run.groups.values() for name, agent in group.agents.items()}
    retriever = getattr(run.team.unwrapped, "retriever", None)
    scores = result.scores()
    return {
        "checkpoint": plan.request.checkpoint,
        "iteration": None if plan.manifest is None else plan.manifest.iteration,
        "models": {
            name: {"path": plan.models[name], "weights_version": group.weights_version}
            for name, (group, _) in agents.items()
        },
        "team": config["agents"]["_target_"],
        "environment": config["env"]["_target_"],
        "templates": {name: template_hash(agent) for name, (_, agent) in agents.items()},
        "data": {"split": split, "fingerprint": data.fingerprints[split], "tasks": len(data.tasks(split))},
        "retriever": getattr(retriever, "fingerprint", None),
        "sampling": {
            name: asdict(replace(agent.sampling, **settings.sampling)) for name, (_, agent) in agents.items()
        },
        "k": settings.samples,
        "seed": run.trainer.seed,
        "grader_version": drmas_pl.__version__,
        "metric": run.team.unwrapped.metric,
        f"avg@{settings.samples}": scores.pop("sampled"),
        **{f"pass@{k}": value for k, value in scores.pop("pass_at").items()},
        **scores,
    }


def _percents(shares: list[float | None]) -> list[str]:
    return ["-" if share is None else f"{100 * share:.1f} %" for share in shares]
