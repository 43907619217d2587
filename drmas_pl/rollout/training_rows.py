"""Training rows: the turns that workers learn from, equal ones merged; what a rollout must satisfy is asserted here too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from drmas_pl.algorithms.estimators import TokenAdvantages
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.errors import BatchError
from drmas_pl.functional.grouping import align_rows, group_ids
from drmas_pl.types import Trajectory


def training_rows(
    turns: TurnBatch, advantage: Tensor | TokenAdvantages, *, align_turns: Mapping[str, int], seed: int
) -> dict[str, list[TrainingRow]]:
    """Build the rows that each agent trains on.

    Args:
        turns: N turns.
        advantage: Their advantages, (N,), or those of their tokens.
        align_turns: See :func:`aligned_rows`; empty keeps every row once.
        seed: Decides what alignment drops and repeats.
    """
    if align_turns:
        places = aligned_rows(turns, align_turns, seed=seed)
        return build_rows(turns.take(places), advantage[places])
    return build_rows(turns, advantage)


def build_rows(table: TurnBatch, advantage: Tensor | TokenAdvantages) -> dict[str, list[TrainingRow]]:
    """Build one row per trained turn and merge equal ones.

    Turns with the same agent, prompt, response and weights and the same sign of advantage become one row whose advantage is the sum and
    whose weight is their number; every surrogate is positively homogeneous in the advantage, so the gradient is the same. Rows with an
    advantage per token stay as they are.

    Args:
        table: N turns.
        advantage: (N,) advantages, or those of tokens.

    Returns:
        Rows by agent name; only agents with rows appear.

    Raises:
        BatchError: A row holds different numbers of ids and log-probs, or an advantage is not finite.
    """
    by_token = advantage if isinstance(advantage, TokenAdvantages) else None
    values = (advantage.row if isinstance(advantage, TokenAdvantages) else advantage).tolist()
    if len(values) != len(table) or not all(abs(value) < float("inf") for value in values):
        raise BatchError(
            f"expected {len(table)} finite advantages, got {len(values)} of which some may be NaN or infinite"
        )
    merged: dict[tuple[object, ...], TrainingRow] = {}
    for place in table.trained.nonzero().flatten().tolist():
        turn = table.turns[place]
        value = values[place]
        if len(turn.response_ids) != len(turn.logprobs):
            raise BatchError(
                f"agent {turn.agent!r} sampled {len(turn.response_ids)} ids but has {len(turn.logprobs)} log-probs"
            )
        tokens = (
            None if by_token is None else tuple(by_token.advantage[place, : len(turn.response_ids)].tolist())
        )
        ids = turn.prompt_ids, turn.response_ids
        new = TrainingRow(
            turn.agent,
            *ids,
            turn.logprobs,
            value,
            token_advantage=tokens,
            weights_version=min(turn.token_versions, default=turn.weights_version),
        )
        key = (
            (turn.agent, *ids, value > 0, value < 0, turn.weights_version, turn.later_versions)
            if by_token is None
            else (place,)
        )
        row = merged.get(key)
        merged[key] = (
            new if row is None else replace(row, advantage=row.advantage + value, weight=row.weight + 1)
        )
    rows: dict[str, list[TrainingRow]] = {}
    for row in merged.values():
        rows.setdefault(row.agent, []).append(row)
    return rows


def check_rollout(
    trajectories: Sequence[Trajectory], *, samples: int, versions: Mapping[str, int], max_staleness: int = 0
) -> None:
    """Assert what every rollout must satisfy.

    Args:
        trajectories: All trajectories of the iteration.
        samples: Configured trajectories per task, failed ones included; a task that comes twice has twice as many.
        versions: Version of the weights that learn, by agent name.
        max_staleness: How many updates older the weights may be that sampled a token.

    Raises:
        BatchError: A task has another number of samples, a reward is not finite, or a token comes from other weights.
    """
    counts: dict[str, int] = {}
    for trajectory in trajectories:
        counts[trajectory.task.id] = counts.get(trajectory.task.id, 0) + 1
        total = trajectory.reward + sum(trajectory.rewards.values())
        if not abs(total) < float("inf"):
            raise BatchError(f"task {trajectory.task.id!r} was rewarded with {total}; rewards must be finite")
        for turn in trajectory.sampled:
            newest = versions[turn.agent]
            sampled = (turn.weights_version, *(version for _, version in turn.later_versions))
            if min(sampled) < newest - max_staleness or max(sampled) > newest:
                raise BatchError(
                    f"agent {turn.agent!r} spoke with weights {', '.join(map(str, sampled))}, expected version {newest}"
                    + (f" or at most {max_staleness} older" if max_staleness else "")
                )
    wrong = {task: count for task, count in counts.items() if count % samples}
    if wrong:
        raise BatchError(
            f"every task needs {samples} samples, but {len(wrong)} tasks differ, for example {next(iter(wrong.items()))}"
        )


def aligned_rows(table: TurnBatch, turns: Mapping[str, int], *, seed: int) -> Tensor:
    """Choose rows so that every trajectory trains equally many turns of the named agents; apply it after normalising.

    Args:
        table: N rows.
        turns: D by agent name: turns per trajectory that called the agent; more are dropped and fewer repeated, at random.
        seed: Decides which.

    Returns:
        (M,) row numbers, those of agents that are not named untouched.

    Raises:
        ValueError: An agent is unknown.

    References:
        Hong et al., 2025 (M-GRPO), trajectory alignment, arXiv:2511.13288.
    """
    unknown = sorted(set(turns) - set(table.names))
    if unknown:
        raise ValueError(f"align_turns must name agents out of {list(table.names)}, got {unknown}")
    generator = torch.Generator().manual_seed(seed % (1 << 63))
    kept = []
    for place, name in enumerate(table.names):
        rows = ((table.agent == place) & table.trained).nonzero().flatten()
        if name in turns and len(rows):
            rows = rows[align_rows(group_ids(table.trajectory[rows]), turns[name], generator=generator)]
        kept.append(rows)
    return torch.cat(kept) if kept else torch.zeros(0, dtype=torch.int64)
