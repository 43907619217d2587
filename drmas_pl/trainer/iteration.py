"""What an iteration does with its rollout: score the turns, and update the workers.

A stage that loses a worker is repeated from the last snapshot, see :class:`~drmas_pl.trainer.fault_tolerance.StageRetry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from drmas_pl.algorithms.credit_rules import CreditRule
from drmas_pl.algorithms.estimators import AdvantageEstimator, TokenAdvantages
from drmas_pl.algorithms.token_batch import TrainingRow, training_rows
from drmas_pl.algorithms.turn_batch import TokenValues, TurnBatch, build_turn_batch
from drmas_pl.errors import ConfigError
from drmas_pl.models.value_head import ValueRow
from drmas_pl.rollout.dynamic_sampling import RolloutBatch, check_rollout
from drmas_pl.seeding import derive_seed
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.trainer.state import FitContext
from drmas_pl.workers.background_weight_sync import BackgroundWeightSync
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.protocols import PolicyWorkerProtocol, ValueWorkerProtocol, ValueWorkers, WorkerProtocol
from drmas_pl.workers.schedule import Schedule, learning_groups

AnyWorker = TypeVar("AnyWorker", bound=WorkerProtocol[Any])


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """The turns of a rollout, and what workers learn from them.

    Attributes:
        all_turns: N turns of every task, with the scores that rewards and credit give them.
        turns: M turns of the tasks that are trained on, with KL penalties and critics' values as well.
        advantage: (M,) advantages of ``turns``, or those of their tokens.
        rows: Training rows by agent name.
    """

    all_turns: TurnBatch
    turns: TurnBatch
    advantage: Tensor | TokenAdvantages
    rows: Mapping[str, list[TrainingRow]]


@dataclass(frozen=True, slots=True)
class UpdateReports:
    """What an iteration's updates report.

    Attributes:
        policies: Reports by worker group; only of those that learnt.
        critics: Reports by critic.
    """

    policies: Mapping[str, UpdateReport]
    critics: Mapping[str, UpdateReport]


def score_rollout(
    rollout: RolloutBatch,
    fit: FitContext,
    *,
    credit: CreditRule | None,
    estimator: AdvantageEstimator,
    settings: RolloutSettings,
    seed: int,
) -> ScoredBatch:
    """Compute rewards, credit, KL penalties, values and advantages of a rollout's turns.

    Args:
        rollout: All trajectories of an iteration.
        fit: Workers, and what repeats a stage that lost one.
        credit: What each turn is credited with; None is the team's reward.
        estimator: Turns scores into advantages.
        settings: Samples per task, and alignment of turns.
        seed: Decides what alignment drops and repeats.

    Raises:
        BatchError: The rollout or its advantages are not what they must be.
    """
    check_rollout(
        rollout.trajectories,
        samples=settings.samples,
        versions=rollout.versions,
        max_staleness=settings.max_staleness,
    )
    all_turns = build_turn_batch(rollout.trajectories, fit.agents, credit=credit)
    turns = rollout.select_kept(all_turns)
    turns = fit.retry.run(apply_kl_penalty, turns, fit.groups.values())
    turns = fit.retry.run(compute_values, turns, fit.critics)
    advantage = estimator(turns)
    rows = training_rows(turns, advantage, align_turns=settings.align_turns, seed=seed)
    return ScoredBatch(all_turns, turns, advantage, rows)


def learn(
    batch: ScoredBatch,
    fit: FitContext,
    *,
    schedule: Schedule,
    iteration: int,
    seed: int,
    begun: Callable[[str, int, int], None] = lambda name, place, count: None,
) -> UpdateReports:
    """Update every critic, and the worker groups whose turn it is; a snapshot is part of either stage.

    Args:
        batch: What they learn from.
        fit: Workers, and what repeats a stage that lost one.
        schedule: Which worker groups learn in which iteration.
        iteration: Counted from 0.
        seed: Run seed.
        begun: Called when a worker group begins to learn, with its name, its place among those that learn, and their number.

    Raises:
        TrainingStopped: Too many minibatches had to be skipped, or a worker was lost too often.
    """
    critic_seed = derive_seed(seed, "update", iteration)
    critics = fit.retry.run_update(
        update_critics, batch.turns, batch.advantage, fit.critics, seed=critic_seed
    )
    if iteration < warmup(fit.critics):
        return UpdateReports({}, critics)
    trainable = [name for name, group in fit.groups.items() if group.settings.trainable]
    names = learning_groups(schedule, trainable, iteration)
    seeds = {name: derive_seed(seed, "update", iteration, name) for name in names}
    return UpdateReports(fit.retry.run_update(update_and_sync, batch.rows, fit, seeds, begun), critics)


def update_and_sync(
    rows: Mapping[str, list[TrainingRow]],
    fit: FitContext,
    seeds: Mapping[str, int],
    begun: Callable[[str, int, int], None] = lambda name, place, count: None,
) -> dict[str, UpdateReport]:
    """Update the worker groups named in ``seeds``; engines that are idle take over new weights while other groups still learn.

    Args:
        rows: Training rows by agent name.
        fit: Workers and rollouts.
        seeds: Seed of the minibatches by worker group.
        begun: See :func:`learn`.
    """
    groups = [fit.groups[name] for name in seeds]
    own = {group.name: {agent: rows[agent] for agent in group.agents if agent in rows} for group in groups}
    with BackgroundWeightSync(idle=fit.rollouts.engines_idle) as sync:
        return update_workers(groups, own, seeds, begun=begun, learnt=sync.begin)


def update_workers(
    workers: Sequence[AnyWorker],
    rows: Mapping[str, Any],
    seeds: Mapping[str, int],
    *,
    begun: Callable[[str, int, int], None] = lambda name, place, count: None,
    learnt: Callable[[AnyWorker], None] = lambda worker: None,
) -> dict[str, UpdateReport]:
    """Run the optimizer steps of every worker on its rows.

    Args:
        workers: Policy workers, or value workers, that learn.
        rows: What each of them learns from, by its name.
        seeds: Seed of the shuffle into minibatches by name.
        begun: Called when a worker begins, with its name, its place from 1 on among the workers, and their number.
        learnt: Called with a worker that is asleep again while others may still have to learn.

    Returns:
        Reports by name, in the order of ``workers``.

    Raises:
        GroupLost: A worker on a cluster lost a process.
        TrainingStopped: Too many minibatches of a worker had to be skipped.
    """
    reports: dict[str, UpdateReport] = {}
    place = {worker.name: number for number, worker in enumerate(workers, start=1)}
    with ExitStack() as stack:
        ends = {}
        for worker in workers:
            if worker.owns_devices:
                begun(worker.name, place[worker.name], len(workers))
                stack.enter_context(worker.training())
                ends[worker.name] = worker.begin_update(rows[worker.name], seed=seeds[worker.name])
        for worker in workers:
            if worker.name not in ends:
                begun(worker.name, place[worker.name], len(workers))
                with worker.training():
                    reports[worker.name] = worker.update(rows[worker.name], seed=seeds[worker.name])
                learnt(worker)
        reports |= {name: finish() for name, finish in ends.items()}
    return {worker.name: reports[worker.name] for worker in workers}


def apply_kl_penalty(turns: TurnBatch, groups: Iterable[PolicyWorkerProtocol]) -> TurnBatch:
    """Add the KL penalty of agents that put it into the reward to what is taken from their turns' scores."""
    penalty = turns.penalty.clone()
    trained = turns.trained.tolist()
    for group in groups:
        for agent in group.agents.values():
            own = [
                index for index, turn in enumerate(turns.turns) if turn.agent == agent.name and trained[index]
            ]
            found = group.reward_penalties(agent, [turns.turns[index] for index in own])
            penalty[own] += torch.tensor(found, dtype=penalty.dtype)
    return replace(turns, penalty=penalty)


def compute_values(turns: TurnBatch, critics: ValueWorkers) -> TurnBatch:
    """Fill in the values of every trained turn whose agent has a critic; other turns get none."""
    if not critics:
        return turns
    values: list[TokenValues] = [()] * len(turns)
    for critic in critics.values():
        places = _places(turns, critic)
        found = critic.values([_row(turns, place) for place in places])
        for place, value in zip(places, found, strict=True):
            values[place] = value
    return replace(turns, values=tuple(values))


def update_critics(
    turns: TurnBatch, advantage: Tensor | TokenAdvantages, critics: ValueWorkers, *, seed: int
) -> dict[str, UpdateReport]:
    """Update every critic towards the returns of its agents' turns; those with devices of their own at the same time.

    Args:
        turns: N turns with the values that the advantages were computed from.
        advantage: What the estimator returned.
        critics: Critics by name.
        seed: Decides minibatches.

    Raises:
        ConfigError: The estimator gave no returns.
    """
    rows: dict[str, list[ValueRow]] = {}
    for name, critic in critics.items():
        if not isinstance(advantage, TokenAdvantages):
            raise ConfigError(
                f"critic {name!r} needs returns to learn from; let the estimator give TokenAdvantages, not a tensor"
            )
        assert turns.values is not None
        rows[name] = []
        for place in _places(turns, critic):
            values = turns.values[place]
            returns = advantage.returns[place, : len(values)].tolist()
            rows[name].append(ValueRow(_row(turns, place), values, tuple(returns)))
    seeds = {name: derive_seed(seed, "critic", name) for name in critics}
    return update_workers(list(critics.values()), rows, seeds)


def warmup(critics: ValueWorkers) -> int:
    """Return in how many first iterations critics learn alone."""
    return max((critic.settings.warmup for critic in critics.values()), default=0)


def _places(turns: TurnBatch, critic: ValueWorkerProtocol) -> list[int]:
    """Return the trained turns of a critic's agents."""
    return [
        place
        for place, trained in enumerate(turns.trained.tolist())
        if trained and turns.turns[place].agent in critic.agents
    ]


def _row(turns: TurnBatch, place: int) -> TrainingRow:
    turn = turns.turns[place]
    return TrainingRow(turn.agent, turn.prompt_ids, turn.response_ids, turn.logprobs, 0.0)
