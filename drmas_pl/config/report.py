"""What a run prints at its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from drmas_pl.config.build import Run
from drmas_pl.data.module import Split
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.workers.memory_plan import plan_memory
from drmas_pl.workers.protocols import WorkerProtocol

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
GIB = 2**30


def header(run: Run, config: Mapping[str, Any]) -> str:
    """Return what a run is about to do: who plays what, with which weights, on how many tasks."""
    data, trainer = run.data, run.trainer
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
    per_iteration = f"{data.tasks_per_iteration} tasks x {trainer.rollout.samples} samples"
    lines.append(f"  {trainer.max_iterations} iterations of {per_iteration} into {config['output_dir']}")
    device = trainer.fabric.device
    return "\n".join(
        lines if device.type != "cuda" else [*lines, memory_line(run, torch.cuda.mem_get_info(device)[1])]
    )


def _place(worker: WorkerProtocol[Any, Any]) -> list[str]:
    """Return the line that says where a worker runs, if that is not in this process."""
    place = worker.describe()
    return [f"    {place}"] if place else []


def memory_line(run: Run, available: int) -> str:
    """Return what the run will need of ``available`` bytes, and what to change if that is too much."""
    found = [group.memory() for group in run.groups.values()]
    here = [memory for memory in found if memory is not None]
    rollout = run.trainer.rollout
    plan = plan_memory(here, rollout.residency, staleness=rollout.staleness)
    needs = f"{plan.rollout / GIB:.1f} GiB in rollouts and {plan.training / GIB:.1f} GiB in training"
    line = f"  needs about {needs}; the device has {available / GIB:.1f} GiB"
    if plan.peak <= available:
        return line
    turns = "rollout.staleness=0" if rollout.staleness else "rollout.residency=one update.offload=all"
    return f"{line}: too little, try {turns}, or lower engine.max_batch_tokens or update.micro_batch_tokens"


def outcome(trainer: MultiAgentTrainer, config: Mapping[str, Any]) -> str:
    """Return the closing table: logged metrics of the first and the last validation, and where everything is."""
    summary = trainer.state.summary(trainer.team)
    before, after = summary["logged_before"], summary["logged_after"]
    title = "metric" if summary["metric"] == "success" else f"metric, success = {summary['metric']}"
    rows = [(title, "before", "after")]
    rows += [(name, _number(name, before.get(name)), _number(name, after[name])) for name in after]
    width = max(len(row[0]) for row in rows)
    table = [f"{name:<{width}}  {before:>7}  {after:>7}" for name, before, after in rows]
    table.insert(1, "-" * (width + 18))
    table += [
        f"{'cannot learn' if item.total else 'warning'}: {item.message}" for item in trainer.state.lasting
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
