"""Say how a team with one tiny model plays: what a warm-up prints, and what the model's README quotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from drmas_pl.agent import Agent
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.rollout.collector import Collector, Phase
from drmas_pl.team import Team
from drmas_pl.types import Task, Trajectory


def report(
    policy: nn.Module,
    tokenizer: Any,
    team: Team,
    kinds: Mapping[str, type[Agent]],
    tasks: Sequence[Task],
    *,
    max_new_tokens: int = 64,
) -> list[str]:
    """Play tasks once sampled and once greedily.

    Args:
        policy: The model of all roles.
        tokenizer: Its tokenizer.
        team: Prototype of the team.
        kinds: Class of each agent.
        tasks: What to play.
        max_new_tokens: Bound on an utterance.

    Returns:
        Two lines for people.
    """
    sampling = {"max_new_tokens": max_new_tokens}
    agents = {
        name: kind(name, template="compact", sampling=sampling).bind(policy, tokenizer)
        for name, kind in kinds.items()
    }
    engines = dict.fromkeys(agents, TransformersEngine(policy.eval(), tokenizer))
    collector = Collector(team, agents)
    lines = []
    for mode, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        phase = Phase("report", sampling={"temperature": temperature})
        lines.append(f"{mode:7s} {summarise(collector.collect(tasks, engines, phase), team.highlights)}")
    return lines


def summarise(played: Sequence[Trajectory], highlights: Sequence[str]) -> str:
    """Describe trajectories in one line: success, validity, turns, and the team's own numbers."""
    turns = [turn for trajectory in played for turn in trajectory.turns]
    numbers = {
        "success": _mean([trajectory.success for trajectory in played]),
        "valid": _mean([turn.parsed.valid for turn in turns]),
        "turns": len(turns) / len(played),
        **{name: _mean([trajectory.metrics.get(name, 0.0) for trajectory in played]) for name in highlights},
    }
    return "  ".join(f"{name} {number:.3f}" for name, number in numbers.items())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
