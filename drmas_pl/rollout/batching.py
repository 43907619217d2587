"""From turns and advantages to the rows each worker group trains on, with the invariants of the border asserted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from drmas_pl.algorithms.estimators import TokenAdvantages
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.errors import BatchError
from drmas_pl.types import Trajectory


def build_rows(table: TurnBatch, advantage: Tensor | TokenAdvantages) -> dict[str, list[TrainingRow]]:
    """Build one row per trained turn and merge equal ones.

    Turns with the same agent, prompt and response and the same sign of advantage become one row whose advantage is the sum and
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
        turn, value = table.turns[place], values[place]
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
            weights_version=turn.weights_version,
        )
        key = (
            (turn.agent, turn.prompt_ids, turn.response_ids, value > 0, value < 0)
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


def check_collection(
    trajectories: Sequence[Trajectory], *, samples: int, versions: Mapping[str, int]
) -> None:
    """Assert what every training collection must satisfy.

    Args:
        trajectories: What was collected for training.
        samples: Configured trajectories per task, failed ones included; a task that was drawn twice has twice as many.
        versions: Weight version by agent name that must have sampled every turn.

    Raises:
        BatchError: A task has another number of samples, a reward is not finite, or a turn comes from other weights.
    """
    counts: dict[str, int] = {}
    for trajectory in trajectories:
        counts[trajectory.task.id] = counts.get(trajectory.task.id, 0) + 1
        if not abs(trajectory.reward) < float("inf"):
            raise BatchError(
                f"task {trajectory.task.id!r} was rewarded with {trajectory.reward}; rewards must be finite"
            )
        for turn in trajectory.turns:
            if turn.weights_version != versions[turn.agent]:
                raise BatchError(
                    f"agent {turn.agent!r} spoke with weights {turn.weights_version}, expected version {versions[turn.agent]}"
                )
    wrong = {task: count for task, count in counts.items() if count % samples}
    if wrong:
        raise BatchError(
            f"every task needs {samples} samples, but {len(wrong)} tasks differ, for example {next(iter(wrong.items()))}"
        )
