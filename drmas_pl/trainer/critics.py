"""What the loop does with critics: ask them before advantages are computed, and teach them what the turns were worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from drmas_pl.algorithms.credit_rules import CreditRule, TeamReward
from drmas_pl.algorithms.estimators import AdvantageEstimator, TokenAdvantages
from drmas_pl.algorithms.gae_estimator import GaeEstimator
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.algorithms.turn_batch import TokenValues, TurnBatch
from drmas_pl.errors import ConfigError
from drmas_pl.models.value_head import ValueRow
from drmas_pl.seeding import derive_seed
from drmas_pl.workers.protocols import PolicyWorkerProtocol, ValueWorkerProtocol
from drmas_pl.workers.value_worker import CriticReport

Critics = Mapping[str, ValueWorkerProtocol]


def check_critics(
    estimator: AdvantageEstimator,
    critics: Critics,
    groups: Mapping[str, PolicyWorkerProtocol],
    *,
    credit: CreditRule | None,
) -> None:
    """Make sure that every trained agent has a critic exactly if the estimator asks for values.

    Args:
        estimator: Estimator of the run.
        critics: Critics by name.
        groups: Worker groups by name.
        credit: Credit rule of the run; None is the team's reward.

    Raises:
        ConfigError: Somebody has no critic, several, or one that nobody reads; or the estimator and the rule would both assign credit.
    """
    kind = type(estimator).__name__
    if critics and not estimator.needs_values:
        raise ConfigError(
            f"critics {sorted(critics)} are configured, but {kind} does not read values; use advantage=gae or critic=none"
        )
    if not estimator.needs_values:
        return
    judged = [agent for critic in critics.values() for agent in critic.agents]
    twice = sorted({agent for agent in judged if judged.count(agent) > 1})
    if twice:
        raise ConfigError(f"agents {twice} have more than one critic; each agent needs exactly one")
    alone = sorted(
        agent
        for group in groups.values()
        if group.settings.trainable
        for agent in group.agents
        if agent not in judged
    )
    if alone:
        raise ConfigError(
            f"{kind} needs a critic for every trained agent, but {alone} have none; use critic=value_head"
        )
    if (
        isinstance(estimator, GaeEstimator)
        and estimator.chain == "agent"
        and credit not in (None, TeamReward())
    ):
        raise ConfigError(
            f"GaeEstimator with chain=agent assigns credit itself, got the rule {credit}; use credit=team credit.alpha=1"
        )


def judged(table: TurnBatch, critics: Critics) -> TurnBatch:
    """Fill in the values of every trained turn whose agent has a critic; other turns get none."""
    if not critics:
        return table
    values: list[TokenValues] = [()] * len(table)
    for critic in critics.values():
        places = _places(table, critic)
        for place, found in zip(places, critic.values([_row(table, place) for place in places]), strict=True):
            values[place] = found
    return replace(table, values=tuple(values))


def teach(
    table: TurnBatch, advantage: Tensor | TokenAdvantages, critics: Critics, *, seed: int
) -> dict[str, CriticReport]:
    """Update every critic towards the returns of its agents' turns.

    Args:
        table: N turns with the values that the advantages were computed from.
        advantage: What the estimator returned.
        critics: Critics by name.
        seed: Decides minibatches.

    Raises:
        ConfigError: The estimator gave no returns.
    """
    reports = {}
    for name, critic in critics.items():
        if not isinstance(advantage, TokenAdvantages):
            raise ConfigError(
                f"critic {name!r} needs returns to learn from; let the estimator give TokenAdvantages, not a tensor"
            )
        assert table.values is not None
        rows = []
        for place in _places(table, critic):
            row, values = _row(table, place), table.values[place]
            rows.append(ValueRow(row, values, tuple(advantage.returns[place, : len(values)].tolist())))
        reports[name] = critic.update(rows, seed=derive_seed(seed, "critic", name))
    return reports


def critic_metrics(reports: Mapping[str, CriticReport]) -> dict[str, float]:
    """Name what critics reported: ``train/critic/<critic>/…``."""
    return {
        f"train/critic/{critic}/{name}": float(value)
        for critic, report in reports.items()
        for name, value in {"steps": report.steps, "skipped": report.skipped, **report.metrics}.items()
    }


def warmup(critics: Critics) -> int:
    """Return in how many first iterations critics learn alone."""
    return max((critic.settings.warmup for critic in critics.values()), default=0)


def _places(table: TurnBatch, critic: ValueWorkerProtocol) -> list[int]:
    """Return the trained turns of a critic's agents."""
    return [
        place
        for place, trained in enumerate(table.trained.tolist())
        if trained and table.turns[place].agent in critic.agents
    ]


def _row(table: TurnBatch, place: int) -> TrainingRow:
    turn = table.turns[place]
    return TrainingRow(turn.agent, turn.prompt_ids, turn.response_ids, turn.logprobs, 0.0)
