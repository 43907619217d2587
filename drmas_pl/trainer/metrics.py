"""Numbers of one collection, named ``phase/metric`` for the team and ``phase/agent/metric`` for an agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from torch import Tensor

from drmas_pl.algorithms.estimators import Scopes, TokenAdvantages
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.errors import ConfigError
from drmas_pl.functional.diagnostics import amplification, global_amplification, group_health
from drmas_pl.functional.segments import segment_mean, segment_var
from drmas_pl.types import MetricInfo, Trajectory, Turn
from drmas_pl.workers.learner import UpdateReport

Number = Callable[[Trajectory], float]
Average = Callable[[Sequence[Trajectory], Number], float]
_COLUMNS: Mapping[str, Number] = {
    "reward": lambda trajectory: trajectory.reward,
    "success": lambda trajectory: trajectory.success,
    "truncated": lambda trajectory: trajectory.outcome == "truncated",
    "turns": lambda trajectory: len(trajectory.turns),
}
_RESERVED = frozenset({*_COLUMNS, "failed", "tasks", "dropped_tasks"})


def mean(values: Iterable[float]) -> float:
    """Average, 0 for nothing."""
    items = list(values)
    return sum(items) / len(items) if items else 0.0


def over_trajectories(trajectories: Sequence[Trajectory], number: Number) -> float:
    """Average a number over trajectories."""
    return mean(map(number, trajectories))


def collection_metrics(
    phase: str,
    trajectories: Sequence[Trajectory],
    agents: Sequence[str],
    *,
    declared: Mapping[str, MetricInfo] | None = None,
    average: Average = over_trajectories,
) -> dict[str, float]:
    """Summarise what was played: reward, outcomes and per agent how often and how well-formed it spoke.

    Failed trajectories count in nothing but ``failed``. Metrics of environment and team are averaged over all others, of which one without
    the metric counts as 0, unless the metric is declared to be conditional.

    Args:
        phase: First part of every name.
        trajectories: What was played.
        agents: Names of the team's agents.
        declared: What team and environment say about their metrics; those that nobody has are 0.
        average: Takes trajectories and their numbers together.

    Returns:
        Metrics by name; an average over nothing is left out.

    Raises:
        ConfigError: A metric of the environment or the team has a name that the trainer gives to something else.
    """
    played = [trajectory for trajectory in trajectories if not trajectory.failed]
    out = {"failed": mean(trajectory.failed for trajectory in trajectories)} if trajectories else {}
    if played:
        out |= {name: average(played, number) for name, number in _COLUMNS.items()}
        out |= _source_metrics(played, average)
        own = _own_metrics(played, declared or {}, average)
        _check_names(own)
        out |= own
        for agent in agents:
            out[f"{agent}/calls"] = average(played, partial(Trajectory.calls, agent=agent))
            if any(agent in trajectory.rewards for trajectory in played):
                out[f"{agent}/reward"] = average(played, _paid_to(agent))
            turns = [turn for trajectory in played for turn in trajectory.turns if turn.agent == agent]
            out |= {f"{agent}/{name}": value for name, value in _agent_metrics(turns).items()}
    return {f"{phase}/{name}": value for name, value in out.items()}


def _source_metrics(played: Sequence[Trajectory], average: Average) -> dict[str, float]:
    """Average reward and success over each data source, where there are several."""
    sources = sorted({trajectory.task.data_source for trajectory in played})
    if len(sources) < 2:
        return {}
    own = {source: [item for item in played if item.task.data_source == source] for source in sources}
    return {
        f"source/{source}/{name}": average(own[source], _COLUMNS[name])
        for source in sources
        for name in ("reward", "success")
    }


def _own_metrics(
    played: Sequence[Trajectory], declared: Mapping[str, MetricInfo], average: Average
) -> dict[str, float]:
    """Average the metrics of environment and team."""
    conditional = {name for name, info in declared.items() if info.conditional}
    found = dict.fromkeys([*declared, *(name for trajectory in played for name in trajectory.metrics)])
    out = {name: average(played, _number_called(name)) for name in found if name not in conditional}
    for name in sorted(conditional):
        values = [float(trajectory.metrics[name]) for trajectory in played if name in trajectory.metrics]
        out |= {name: mean(values)} if values else {}
    return out


def _number_called(name: str) -> Number:
    return lambda trajectory: float(trajectory.metrics.get(name, 0.0))


def _paid_to(agent: str) -> Number:
    return lambda trajectory: float(trajectory.rewards.get(agent, 0.0))


def _check_names(names: Iterable[str]) -> None:
    taken = sorted(set(names) & _RESERVED)
    if taken:
        raise ConfigError(
            f"environment or team reports metrics called {taken}, but the trainer logs numbers of its own by these names; "
            "choose other names"
        )


def _agent_metrics(turns: Sequence[Turn]) -> dict[str, float]:
    """Average over an agent's turns; nothing for one that never spoke."""
    if not turns:
        return {}
    return {
        "valid": mean(turn.parsed.valid for turn in turns),
        "malformed": mean(turn.parsed.status == "malformed" for turn in turns),
        "truncated": mean(turn.finish_reason == "length" for turn in turns),
        "no_verdict": mean(turn.parsed.status == "no_verdict" for turn in turns),
        "prompt_truncated": mean(turn.prompt_truncated for turn in turns),
        "prompt_tokens": mean(len(turn.prompt_ids) for turn in turns),
        "response_tokens": mean(len(turn.response_ids) for turn in turns),
    }


def signal_metrics(
    table: TurnBatch, advantage: Tensor | TokenAdvantages, scopes: Scopes | None
) -> dict[str, float]:
    """Explain the advantages: λ_k for the configured scopes and for a global baseline, and the health of each agent's groups.

    Args:
        table: N turns.
        advantage: (N,) advantages the estimator gave them, or those of tokens, of which the mean per turn counts here.
        scopes: Which turns were compared; None where that was no group normalisation, which leaves ``amplification`` out.

    Returns:
        ``train/<agent>/…`` with ``amplification``, ``amplification_global``, ``advantage_square`` (mean A²), ``reward_mean``,
        ``reward_std`` and ``no_signal`` (share of turns with advantage 0). Undefined numbers are left out.
    """
    rows = table.trained.nonzero().flatten()
    if not len(rows):
        return {}
    advantage = (advantage.row if isinstance(advantage, TokenAdvantages) else advantage)[rows]
    table, count = table.take(rows), len(table.names)
    advantage = advantage.to(table.score.dtype)
    columns = {
        **({} if scopes is None else {"amplification": _amplification(table, scopes)}),
        "amplification_global": global_amplification(
            table.score,
            table.agent,
            table.task,
            num_agents=count,
            min_std=0.0 if scopes is None else scopes.min_std,
            clip=None if scopes is None else scopes.clip,
        ),
        "advantage_square": segment_mean(advantage.square(), table.agent, num_groups=count),
        "no_signal": segment_mean((advantage == 0).to(table.score.dtype), table.agent, num_groups=count),
        "reward_mean": segment_mean(table.score, table.agent, num_groups=count),
        "reward_std": segment_var(table.score, table.agent, ddof=0, num_groups=count).sqrt(),
    }
    return _by_agent(table, columns)


def health_metrics(table: TurnBatch) -> dict[str, float]:
    """Return ``train/<agent>/groups_…``: the shares of an agent's groups that are all zero, all one, all equal, or a single turn."""
    health = group_health(
        table.score, table.scope(("task", "agent", "node")), table.agent, num_agents=len(table.names)
    )
    names = ("all_zero", "all_one", "all_equal", "singleton")
    return _by_agent(table, {f"groups_{name}": getattr(health, name) for name in names})


def _by_agent(table: TurnBatch, columns: Mapping[str, Tensor]) -> dict[str, float]:
    return {
        f"train/{agent}/{name}": value
        for name, column in columns.items()
        for agent, value in zip(table.names, column.tolist(), strict=True)
        if math.isfinite(value)
    }


def _amplification(table: TurnBatch, scopes: Scopes) -> Tensor:
    """λ_k of the configured scopes."""
    mean_group = table.scope(scopes.mean)
    std_group = None if scopes.std is None else table.scope(scopes.std)
    entry = table.trajectory if scopes.unit == "trajectory" else None
    return amplification(
        table.score,
        table.agent,
        mean_group,
        std_group,
        entry=entry,
        num_agents=len(table.names),
        min_std=scopes.min_std,
        clip=scopes.clip,
        singleton=scopes.singleton,
    )


def update_metrics(reports: Mapping[str, UpdateReport]) -> dict[str, float]:
    """Name what the optimizer steps reported: ``train/<agent>/…`` and ``train/group/<group>/…``, with each agent's share of the norm."""
    out: dict[str, float] = {}
    for group, report in reports.items():
        counts = {"steps": report.steps, "skipped": report.skipped, "rows": report.rows}
        out |= {
            f"train/group/{group}/{name}": float(value)
            for name, value in {**counts, **report.metrics}.items()
        }
        total = math.fsum(
            metrics["grad_norm"] for metrics in report.agents.values() if "grad_norm" in metrics
        )
        for agent, metrics in report.agents.items():
            out |= {f"train/{agent}/{name}": value for name, value in metrics.items()}
            if total > 0 and "grad_norm" in metrics:
                out[f"train/{agent}/grad_share"] = metrics["grad_norm"] / total
    return out


def critic_metrics(reports: Mapping[str, UpdateReport]) -> dict[str, float]:
    """Name what critics reported: ``train/critic/<critic>/…``."""
    return {
        f"train/critic/{critic}/{name}": float(value)
        for critic, report in reports.items()
        for name, value in {"steps": report.steps, "skipped": report.skipped, **report.metrics}.items()
    }


def staleness_metrics(trajectories: Sequence[Trajectory], newest: Mapping[str, int]) -> dict[str, float]:
    """Return by how many updates the weights that sampled an agent's tokens lag behind ``newest``.

    Returns:
        ``train/<agent>/staleness``, the mean over tokens; ``…/staleness_max``, the largest; ``…/mixed_versions``, the share of turns that
        several versions sampled.
    """
    turns: dict[str, list[Turn]] = {}
    for turn in (turn for trajectory in trajectories for turn in trajectory.sampled):
        if turn.agent in newest and turn.response_ids:
            turns.setdefault(turn.agent, []).append(turn)
    found = {}
    for agent, own in turns.items():
        lags = [newest[agent] - version for turn in own for version in turn.token_versions]
        found[f"train/{agent}/staleness"] = mean(lags)
        found[f"train/{agent}/staleness_max"] = float(max(lags))
        found[f"train/{agent}/mixed_versions"] = mean(bool(turn.later_versions) for turn in own)
    return found
