"""The rollout of an iteration: its tasks are played, and with dynamic sampling others in place of those without learning signal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.data.module import TaskDataModule
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


def sample_rollout(
    draws: Generator[Sequence[Task], list[Trajectory], RolloutBatch],
    play: Callable[[Sequence[Task]], list[Trajectory]],
) -> RolloutBatch:
    """Play what :func:`draw_tasks` asks for, and return the rollout."""
    tasks = next(draws)
    while True:
        try:
            tasks = draws.send(play(tasks))
        except StopIteration as end:
            rollout: RolloutBatch = end.value
            return rollout


def draw_tasks(
    data: TaskDataModule,
    *,
    iteration: int,
    max_draws: int,
    with_signal: Callable[[Sequence[Trajectory]], set[str]],
) -> Generator[Sequence[Task], list[Trajectory], RolloutBatch]:
    """Yield the tasks of an iteration, then, with ``max_draws`` above 1, others in place of those without signal.

    Whoever plays them sends their trajectories back; what is returned in the end is the rollout.

    Args:
        data: Where tasks come from.
        iteration: Counted from 0.
        max_draws: Largest number of draws; 1 plays the iteration's tasks and trains on all of them.
        with_signal: Returns the ids of the tasks whose trajectories carry learning signal.
    """
    tasks = tuple(data.tasks_for(iteration))
    trajectories = yield tasks
    if max_draws == 1:
        return RolloutBatch(tasks, trajectories, None, 1)
    wanted = len({task.id for task in tasks})
    kept = with_signal(trajectories)
    dropped = [task for task in tasks if task.id not in kept]
    draws = 1
    while dropped and draws < max_draws:
        others = data.replacements(dropped, {task.id for task in tasks}, iteration=iteration, draw=draws)
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


def tasks_with_signal(turns: TurnBatch) -> set[str]:
    """Return the ids of tasks on which some agent's scores differ, those of candidates within their prompt; the others teach nothing.

    References:
        Yu et al., 2025 (DAPO), dynamic sampling, arXiv:2503.14476.
    """
    signal = has_signal(turns.score, turns.scope(("task", "agent", "node")))
    return {turns.tasks[row] for row in signal.nonzero().flatten().tolist()}
