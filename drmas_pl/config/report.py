"""What people read of a run and an evaluation, and the record from which an evaluation can be repeated."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import drmas_pl
from drmas_pl.config.build import Run
from drmas_pl.config.evaluation import EvaluationPlan
from drmas_pl.data.module import Split
from drmas_pl.trainer.evaluation import Evaluation
from drmas_pl.trainer.state import template_hash
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.protocols import WorkerProtocol

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def header(run: Run, config: Mapping[str, Any]) -> str:
    """Return what a run is about to do: who plays what, with which weights, on how many tasks."""
    data = run.data
    trainer = run.trainer
    counts = ", ".join(f"{len(data.tasks(split))} {split}" for split in SPLITS if data.tasks(split))
    lines = [
        f"{config['agents']['name']} plays {config['env']['name']}: {counts} tasks, seed {config['seed']}, on {trainer.fabric.device}"
    ]
    for name, group in run.groups.items():
        rate = f"lr {group.settings.optimizer.lr:g}" if group.settings.trainable else "frozen"
        lines.append(
            f"  weights {name!r} ({_count(group.parameter_count)} parameters, {rate}): {', '.join(group.agents)}"
        )
        lines += _place(group)
    for name, critic in run.critics.items():
        rate = f"lr {critic.settings.optimizer.lr:g}"
        lines.append(
            f"  critic {name!r} ({_count(critic.parameter_count)} parameters, {rate}): {', '.join(sorted(critic.agents))}"
        )
        lines += _place(critic)
    rollout = trainer.rollout
    samples = f"trees of {rollout.candidates} candidates" if rollout.branches else "samples"
    per_iteration = f"{data.tasks_per_iteration} tasks x {rollout.samples} {samples}"
    lines.append(f"  {trainer.max_iterations} iterations of {per_iteration} into {config['output_dir']}")
    return "\n".join(lines)


def _place(worker: WorkerProtocol[Any]) -> list[str]:
    """Return the line that says where a worker runs, if that is not in this process."""
    place = worker.describe()
    return [f"    {place}"] if place else []


def outcome(trainer: MultiAgentTrainer, config: Mapping[str, Any]) -> str:
    """Return the closing table: logged metrics of the first and the last validation, and where everything is."""
    summary = trainer.state.summary(trainer.team)
    before = summary["logged_before"]
    after = summary["logged_after"]
    title = "metric" if summary["metric"] == "success" else f"metric, success = {summary['metric']}"
    # a run that was stopped may have played no validation since it began to learn
    ends = [before, after] if len(trainer.state.evaluations) > 1 else [after]
    rows = [(title, *("before", "after")[: len(ends)])]
    rows += [
        (name, *(_number(name, end.get(name)) for end in ends)) for name in _without_single_sources(after)
    ]
    table = aligned(rows, least=7, columns=_terminal_columns())
    table += [
        f"{'cannot learn' if item.fatal else 'warning'}: {item.message}" for item in trainer.state.lasting
    ]
    folder = Path(config["output_dir"])
    places = {
        "logs": folder / "logs",
        "checkpoint": _checkpoint(trainer),
        "plot": trainer.folder.plot,
        "page": trainer.folder.page,
        "summary": folder / "summary.json",
    }
    noun = "iteration" if summary["iterations"] == 1 else "iterations"
    done = f"{summary['iterations']} {noun} in {_clock(summary['seconds'])}, peak memory {summary['peak_rss_mb'] / 1024:.1f} GB"
    return "\n".join(
        [
            "",
            *table,
            "",
            done,
            *(f"{name:<11} {path}" for name, path in places.items() if path is not None and path.exists()),
        ]
    )


def aligned(rows: Sequence[Sequence[str]], *, least: int = 0, columns: int | None = None) -> list[str]:
    """Return the lines of a table with a line below its head; the first column is flush left, the others flush right.

    Args:
        rows: Head and rows.
        least: Characters that a column of numbers takes at least.
        columns: Width of the terminal, in which names are folded and numbers never cut, and the head is bold; None for a file.

    >>> aligned([("metric", "after"), ("calls", "2.00")])
    ['metric  after', '-------------', 'calls    2.00']
    """
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table

    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    table = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(rows[0][0], overflow="fold")
    for head in rows[0][1:]:
        table.add_column(head, justify="right", no_wrap=True, min_width=least)
    for row in rows[1:]:
        table.add_row(*row)
    page = StringIO()
    terminal = columns is not None
    Console(file=page, width=columns or 10_000, force_terminal=terminal, highlight=False, markup=False).print(
        table
    )
    return [line.rstrip() for line in page.getvalue().splitlines()]


def _terminal_columns() -> int | None:
    """Return the width of the terminal that the program prints to; None where it prints elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def _without_single_sources(names: Iterable[str]) -> list[str]:
    """Leave out scores by data source where there is one source, since they are the scores themselves."""
    kept = list(names)
    by_phase = Counter(name.split("/source/")[0] for name in kept if "/source/" in name)
    return [name for name in kept if "/source/" not in name or by_phase[name.split("/source/")[0]] > 1]


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
    width = max(len(row[0]) for row in rows)
    lines = aligned(rows, columns=_terminal_columns())
    lines += ["", *(f"calls of {agent:<{width}} {calls:.2f}" for agent, calls in result.calls.items())]
    if result.failed:
        lines.append(
            f"\n{result.failed} of {len(result.trajectories)} trajectories failed and count in nothing"
        )
    return "\n".join(lines)


def evaluation_record(run: Run, result: Evaluation, plan: EvaluationPlan) -> dict[str, Any]:
    """Return everything that is needed to compare this evaluation with another one, or to repeat it."""
    settings = run.trainer.evaluation
    data = run.data
    config = plan.config
    split = plan.request.split
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


def _checkpoint(trainer: MultiAgentTrainer) -> Path | None:
    pointer = trainer.folder.checkpoints / "last"
    return trainer.folder.checkpoints / pointer.read_text().strip() if pointer.is_file() else None


def _number(name: str, value: float | None) -> str:
    """Return calls as they are, and shares in percent."""
    if value is None:
        return "-"
    return f"{value:.2f}" if name.endswith("/calls") else f"{100 * value:.1f} %"


def _count(number: int) -> str:
    """Return a number of parameters with two or three digits, such as 1.24 M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s" if seconds >= 60 else f"{seconds:.1f} s"
