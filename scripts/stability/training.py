"""Part B of the stability experiment: teams that learn, with every regime, normaliser and seed.

Place in the data flow: a real trainer plays one run; its metrics and the second moments measured on the way become one JSON file, from
which :mod:`scripts.stability.summary` makes tables. Agents never share weights here.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drmas_pl.data.module import TaskDataModule
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.models.loading import load_model
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.utils.atomic import write_atomically
from drmas_pl.workers.build import AgentBinding, build_groups
from scripts.stability.moments import NORMALIZERS, Probe
from scripts.stability.regimes import REGIMES

MODEL = "embedded:tiny-math"
KEPT = (
    "grad_norm",
    "amplification",
    "amplification_global",
    "reward_mean",
    "reward_std",
    "calls",
    "no_signal",
)

log = logging.getLogger(__name__)
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is.

    Attributes:
        iterations: Training iterations, one optimizer step of each agent.
        tasks: Tasks per iteration.
        samples: Trajectories per task.
        validation: Validation tasks, each played once at temperature 1.
        validate_every: Iterations between validations.
        probe_every: Iterations from one measurement of second moments to the next.
    """

    iterations: int = 30
    tasks: int = 12
    samples: int = 8
    validation: int = 300
    validate_every: int = 10
    probe_every: int = 5


def train_all(folder: Path, *, regimes: Sequence[str], seeds: Sequence[int], size: Size) -> list[Record]:
    """Train every combination, skipping those whose file of the same size is in ``folder``.

    Args:
        folder: Where the runs' files are; created when missing.
        regimes: Keys of ``REGIMES``.
        seeds: Seeds; each plays the same tasks with every normaliser.
        size: How large each run is.

    Returns:
        Records in the order regime, normaliser, seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for regime, normalizer, seed in [(r, n, s) for r in regimes for n in NORMALIZERS for s in seeds]:
        path = folder / f"{regime}-{normalizer}-{seed}.json"
        record = _finished(path, size)
        if record is None:
            started = time.perf_counter()
            record = train(regime, normalizer, seed=seed, size=size)
            write_atomically(path, json.dumps(record) + "\n")
            log.info(
                "%s: success %.1f %%, %.0f s",
                path.stem,
                100 * record["success"],
                time.perf_counter() - started,
            )
        records.append(record)
    return records


def train(regime: str, normalizer: str, *, seed: int, size: Size) -> Record:
    """Train one team.

    Args:
        regime: Key of ``REGIMES``.
        normalizer: Key of ``NORMALIZERS``.
        seed: Decides tasks, samples and minibatches.
        size: How much is trained.

    Returns:
        Plain data: validation success by iteration and at the end, the team's highlights, the agents' metrics by iteration, and their
        predicted and measured second moments.
    """
    team, agents = REGIMES[regime].team(), REGIMES[regime].agents()
    probe = Probe(NORMALIZERS[normalizer], {agent.name: agent for agent in agents}, size.probe_every)
    with tempfile.TemporaryDirectory() as folder:
        trainer = MultiAgentTrainer(
            max_iterations=size.iterations,
            output_dir=folder,
            estimator=probe,
            rollout=RolloutSettings(samples=size.samples, max_idle_iterations=size.iterations + 1),
            evaluation=EvaluationSettings(greedy=False, every=size.validate_every),
            seed=seed,
            accelerator="cpu",
            record=(),
            keep_best=False,
        )
        groups = build_groups(
            [AgentBinding(agent, MODEL, optimizer=REGIMES[regime].optimizer) for agent in agents],
            sharing="per_agent",
            fabric=trainer.fabric,
            load=load_model,
            engine=lambda group, policy, tokenizer: TransformersEngine(policy, tokenizer),
            iterations=size.iterations,
        )
        state = trainer.fit(team, groups, make_data(seed, size))
        metrics = trainer.folder.read_metrics()
    team.close()
    curve = [
        (record["iteration"], record["validation/success"])
        for record in metrics
        if "validation/success" in record
    ]
    return {
        "regime": regime,
        "normalizer": normalizer,
        "seed": seed,
        "size": asdict(size),
        "success": curve[-1][1],
        "curve": curve,
        "highlights": state.summary(team)["highlights"],
        "agents": {agent.name: _series(metrics, agent.name) for agent in agents},
        "moments": [
            {"iteration": at, "agent": name, **asdict(found)}
            for at, by_agent in probe.found
            for name, found in by_agent.items()
        ],
    }


def make_data(seed: int, size: Size) -> TaskDataModule:
    """Give the shipped arithmetic tasks, in the order that ``seed`` decides."""
    return TaskDataModule(
        train="embedded:math/train",
        validation="embedded:math/validation",
        tasks_per_iteration=size.tasks,
        limit_validation=size.validation,
        balance="data_source",
        seed=seed,
    )


def _series(metrics: Sequence[Mapping[str, Any]], agent: str) -> dict[str, list[float | None]]:
    """Collect an agent's training metrics by iteration; None where one is undefined."""
    records = [record for record in metrics if "train/reward" in record]
    return {name: [record.get(f"train/{agent}/{name}") for record in records] for name in KEPT}


def _finished(path: Path, size: Size) -> Record | None:
    """Read a run's file; None where there is none, or one of another size."""
    if not path.exists():
        return None
    record: Record = json.loads(path.read_text())
    return record if record["size"] == asdict(size) else None
