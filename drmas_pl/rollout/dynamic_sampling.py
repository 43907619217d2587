"""Play an iteration's tasks, and others in place of those that teach nothing; keep what was played for later."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from drmas_pl.data.module import TaskDataModule
from drmas_pl.data.recorded import read_trajectories, write_trajectories
from drmas_pl.errors import CheckpointError, DataError
from drmas_pl.types import Task, Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """What an iteration played.

    Attributes:
        tasks: Every task, in the order of drawing.
        trajectories: Every trajectory.
        kept: Ids of the tasks to train on; None trains on all.
        draws: How often tasks were drawn.
        versions: Version of the weights that played, by agent name.
    """

    tasks: tuple[Task, ...]
    trajectories: list[Trajectory]
    kept: frozenset[str] | None
    draws: int
    versions: Mapping[str, int] = field(default_factory=dict)

    @property
    def dropped(self) -> float:
        """Share of the played tasks that are not trained on."""
        ids = {task.id for task in self.tasks}
        return 0.0 if self.kept is None else 1 - len(self.kept) / max(len(ids), 1)


def draw_and_play(
    data: TaskDataModule,
    play: Callable[[Sequence[Task]], list[Trajectory]],
    *,
    iteration: int,
    max_draws: int,
    with_signal: Callable[[Sequence[Trajectory]], set[str]],
) -> RolloutBatch:
    """Play the tasks of an iteration; with ``max_draws`` above 1, draw further ones until each trained task carries signal.

    Args:
        data: Where tasks come from.
        play: Plays tasks.
        iteration: Counted from 0.
        max_draws: Largest number of draws; 1 plays the iteration's tasks and trains on all of them.
        with_signal: Returns the ids of the tasks whose trajectories carry learning signal.
    """
    drawn = tuple(data.tasks_for(iteration))
    tasks, trajectories = drawn, play(drawn)
    if max_draws == 1:
        return RolloutBatch(tasks, trajectories, None, 1)
    wanted, kept, draw = len({task.id for task in drawn}), with_signal(trajectories), 1
    dropped = [task for task in drawn if task.id not in kept]
    while dropped and draw < max_draws:
        drawn = data.replacements(dropped, {task.id for task in tasks}, iteration=iteration, draw=draw)
        if not drawn:
            break
        played = play(drawn)
        found = with_signal(played)
        dropped = [task for task in drawn if task.id not in found]
        tasks, trajectories, kept, draw = (*tasks, *drawn), [*trajectories, *played], kept | found, draw + 1
    if len(kept) < wanted:
        log.warning(
            "only %d of %d tasks carry signal after %d draws; raise rollout.max_draws or choose other tasks",
            len(kept),
            wanted,
            draw,
        )
    return RolloutBatch(tasks, trajectories, frozenset(kept), draw)


def save_drawn(folder: Path, drawn: RolloutBatch) -> None:
    """Write what was played and not yet trained on.

    Raises:
        DataError: A task's or trajectory's data cannot be written as JSON.
    """
    write_trajectories(folder / "trajectories.jsonl", drawn.trajectories)
    kept = None if drawn.kept is None else sorted(drawn.kept)
    record = {
        "tasks": [task.id for task in drawn.tasks],
        "kept": kept,
        "draws": drawn.draws,
        "versions": dict(drawn.versions),
    }
    (folder / "drawn.json").write_text(
        json.dumps({**record, "trajectories": len(drawn.trajectories)}, indent=1)
    )


def load_drawn(folder: Path, tasks: Iterable[Task]) -> RolloutBatch:
    """Read what :func:`save_drawn` wrote.

    Args:
        folder: Where it was written.
        tasks: Training tasks; they take the place of what was written of them.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    known = {task.id: task for task in tasks}
    try:
        record = json.loads((folder / "drawn.json").read_text())
        read = read_trajectories(folder / "trajectories.jsonl")
        if len(read) != record["trajectories"]:
            raise ValueError(f"{len(read)} of {record['trajectories']} trajectories are there")
        trajectories = [
            replace(trajectory, task=known.get(trajectory.task.id, trajectory.task)) for trajectory in read
        ]
        played = {trajectory.task.id: trajectory.task for trajectory in trajectories}
        kept = None if record["kept"] is None else frozenset(record["kept"])
        return RolloutBatch(
            tuple(played[task] for task in record["tasks"]),
            trajectories,
            kept,
            record["draws"],
            record["versions"],
        )
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise CheckpointError(
            f"checkpoint folder {folder} cannot be read ({error}); choose another one of the run"
        ) from error
