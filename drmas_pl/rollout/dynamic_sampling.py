"""The rollout of an iteration: its tasks are played, and with dynamic sampling others in place of those without learning signal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.errors import BatchError
from drmas_pl.functional.diagnostics import has_signal
from drmas_pl.rollout.timeline import Timeline
from drmas_pl.types import Task, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The trajectories of one iteration.

    Attributes:
        tasks: Every task, in the order in which they were played.
        trajectories: Every trajectory.
        kept: Ids of the tasks to train on; None trains on all.
        draws: How often tasks were taken from the data.
        versions: Version of the weights that sampled, by agent name.
        timeline: What the trajectories waited for; None if nobody knows any more, as of those from a checkpoint.
    """

    tasks: tuple[Task, ...]
    trajectories: list[Trajectory]
    kept: frozenset[str] | None
    draws: int
    versions: Mapping[str, int] = field(default_factory=dict)
    timeline: Timeline | None = None

    @property
    def dropped(self) -> float:
        """Share of the played tasks that are not trained on."""
        ids = {task.id for task in self.tasks}
        return 0.0 if self.kept is None else 1 - len(self.kept) / max(len(ids), 1)

    def select_kept(self, turns: TurnBatch) -> TurnBatch:
        """Return the turns of the tasks to train on."""
        if self.kept is None:
            return turns
        rows = [row for row, task in enumerate(turns.tasks) if task in self.kept]
        return turns.take(torch.tensor(rows, dtype=torch.int64))


def draw_tasks(
    tasks: Sequence[Task],
    replacements: Callable[..., Sequence[Task]],
    *,
    max_draws: int,
    with_signal: Callable[[Sequence[Trajectory]], set[str]],
) -> Generator[Sequence[Task], list[Trajectory], RolloutBatch]:
    """Yield the tasks of an iteration, then, with ``max_draws`` above 1, others in place of those without signal.

    Whoever plays them sends their trajectories back; what is returned in the end is the rollout.

    Args:
        tasks: Those of the iteration.
        replacements: Returns others in place of some, ``replacements(dropped, played, draw=1)``.
        max_draws: Largest number of draws; 1 plays the iteration's tasks and trains on all of them.
        with_signal: Returns the ids of the tasks whose trajectories carry learning signal.
    """
    tasks = tuple(tasks)
    trajectories = yield tasks
    if max_draws == 1:
        return RolloutBatch(tasks, trajectories, None, 1)
    wanted = len({task.id for task in tasks})
    kept = with_signal(trajectories)
    dropped = [task for task in tasks if task.id not in kept]
    draws = 1
    while dropped and draws < max_draws:
        others = replacements(dropped, {task.id for task in tasks}, draw=draws)
        if not others:
            break
        more = yield others
        found = with_signal(more)
        dropped = [task for task in others if task.id not in found]
        tasks = (*tasks, *others)
        trajectories = [*trajectories, *more]
        kept |= found
        draws += 1
    if len(kept) < wanted:
        log.warning(
            "only %d of %d tasks carry signal after %d draws; raise rollout.max_draws or choose other tasks",
            len(kept),
            wanted,
            draws,
        )
    return RolloutBatch(tasks, trajectories, frozenset(kept), draws)


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


def tasks_with_signal(turns: TurnBatch) -> set[str]:
    """Return the ids of tasks on which some agent's scores differ, those of candidates within their prompt; the others teach nothing.

    References:
        Yu et al., 2025 (DAPO), dynamic sampling, arXiv:2503.14476.
    """
    signal = has_signal(turns.score, turns.scope(("task", "agent", "node")))
    return {turns.tasks[row] for row in signal.nonzero().flatten().tolist()}
