"""Part A of the stability experiment: policies that stay as they are, and rewards whose gap between the agents grows.

Place in the data flow: the shipped model plays :class:`~scripts.stability.checked.CheckedTeam`; each turn's score-function norm is
computed once, after which any reward and any normaliser is arithmetic on the same turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.data.module import TaskDataModule
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.models.loading import load_model
from drmas_pl.rollout.collector import Collector, Phase
from scripts.stability.checked import BACKUP
from scripts.stability.moments import NORMALIZERS, Moments, measure, score_norms
from scripts.stability.regimes import REGIMES
from scripts.stability.training import MODEL, Size, make_data

# what the backup pays per call, and what a rescue earns it beside the team's reward
GAPS: Mapping[str, Sequence[float]] = {"price": (0.0, 0.3, 1.0, 3.0, 10.0), "bonus": (1.0, 3.0, 9.0, 30.0)}


@dataclass(frozen=True, slots=True)
class Point:
    """One agent's moments under one reward gap, one normaliser and one seed.

    Attributes:
        gap: ``price``, an offset of the backup's reward, or ``bonus``, a factor of its scale.
        size: How much.
        normalizer: Key of ``NORMALIZERS``.
        agent: Agent name.
        seed: Seed of tasks and samples.
        moments: Predicted and measured.
    """

    gap: str
    size: float
    normalizer: str
    agent: str
    seed: int
    moments: Moments


def frozen_points(seeds: Sequence[int], *, size: Size) -> list[Point]:
    """Play the shipped model once per seed and sweep the gaps.

    Args:
        seeds: Seeds of tasks and samples.
        size: Its ``tasks`` and ``samples`` are played.
    """
    points = []
    for seed in seeds:
        table, norms = play(make_data(seed, size), seed=seed, samples=size.samples)
        points += sweep(table, norms, seed=seed)
    return points


def play(data: TaskDataModule, *, seed: int, samples: int) -> tuple[TurnBatch, Tensor]:
    """Play one iteration's tasks with frozen policies.

    Returns:
        The turns, with rewards without any gap, and their (N,) squared score-function norms.
    """
    regime = REGIMES["same"]
    policy, tokenizer = load_model(MODEL)
    agents = {agent.name: agent.bind(policy, tokenizer) for agent in regime.agents()}
    engine, team = TransformersEngine(policy, tokenizer), regime.team()
    played = Collector(team, agents).collect(
        data.tasks_for(0), dict.fromkeys(agents, engine), Phase("frozen", seed, samples=samples)
    )
    team.close()
    table = build_turn_batch(played, agents)
    return table, score_norms(table, agents)


def sweep(table: TurnBatch, norms: Tensor, *, seed: int) -> list[Point]:
    """Give the backup's turns every reward gap and measure under every normaliser, with population moments as in λ's definition.

    Args:
        table: N turns of the team, with rewards without any gap.
        norms: (N,) squared score-function norms.
        seed: Noted in the points.
    """
    points = []
    backup = table.agent == table.names.index(BACKUP)
    for gap, sizes in GAPS.items():
        for size in sizes:
            changed = table.score - size if gap == "price" else table.score * (1 + size)
            moved = replace(table, credit=table.score.where(~backup, changed) + table.penalty)
            for name, configured in NORMALIZERS.items():
                normalizer = replace(configured, ddof=0)
                found = measure(moved, normalizer(moved), norms, normalizer=normalizer)
                points += [Point(gap, size, name, agent, seed, moments) for agent, moments in found.items()]
    return points
