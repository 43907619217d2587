"""What has been played for iterations that are not trained on yet, so that a later part of the run can go on from it.

Trajectories that are over are kept as they are. Of those that were begun, what engines have sampled is kept: played again they ask the same
and are answered from there, so that team and environment come to where they were, and the last response goes on behind its last token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from drmas_pl.data.files import parse_line, write_json_lines
from drmas_pl.data.recorded import read_trajectories, write_trajectories
from drmas_pl.errors import CheckpointError, DataError
from drmas_pl.rollout.scheduler import AttemptRecord
from drmas_pl.types import Completion, Task, Trajectory

TRAJECTORIES = "trajectories.jsonl"
BEGUN = "begun.jsonl"
# task and number of the sample
Sample = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PlayedAhead:
    """What has been played, by iteration and sample.

    Attributes:
        finished: Trajectories that are over.
        begun: What has been sampled for those that are not.
    """

    finished: Mapping[int, Mapping[Sample, Trajectory]] = field(default_factory=dict)
    begun: Mapping[int, Mapping[Sample, AttemptRecord]] = field(default_factory=dict)

    @property
    def iterations(self) -> list[int]:
        """Iterations of which anything was played."""
        return sorted({*self.finished, *self.begun})


def save_played_ahead(folder: Path, played: PlayedAhead) -> None:
    """Write what was played.

    Raises:
        DataError: A task's or trajectory's data cannot be written as JSON.
    """
    finished = (
        replace(trajectory, iteration=iteration + 1)
        for iteration, samples in played.finished.items()
        for trajectory in samples.values()
    )
    write_trajectories(folder / TRAJECTORIES, finished)
    begun = (
        {"task": task, "sample": sample, **_encode(record)}
        for samples in played.begun.values()
        for (task, sample), record in samples.items()
    )
    write_json_lines(folder / BEGUN, begun)


def load_played_ahead(folder: Path, tasks: Iterable[Task]) -> PlayedAhead:
    """Read what :func:`save_played_ahead` wrote.

    Args:
        folder: Where it was written.
        tasks: Training tasks; they take the place of what was written of them.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    known = {task.id: task for task in tasks}
    finished: dict[int, dict[Sample, Trajectory]] = {}
    begun: dict[int, dict[Sample, AttemptRecord]] = {}
    try:
        for trajectory in read_trajectories(folder / TRAJECTORIES):
            task = known.get(trajectory.task.id, trajectory.task)
            assert trajectory.iteration is not None
            samples = finished.setdefault(trajectory.iteration - 1, {})
            samples[task.id, trajectory.sample] = replace(trajectory, task=task, iteration=None)
        lines = (folder / BEGUN).read_bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            entry = parse_line(line, f"{folder / BEGUN}, line {number}")
            record = _decode(entry)
            begun.setdefault(record.iteration, {})[entry["task"], entry["sample"]] = record
    except (OSError, ValueError, KeyError, TypeError, AssertionError, DataError) as error:
        raise CheckpointError(
            f"checkpoint folder {folder} cannot be read ({error}); choose another one of the run"
        ) from error
    return PlayedAhead(finished, begun)


def _encode(record: AttemptRecord) -> dict[str, Any]:
    answers = [{"seed": seed, **asdict(answer)} for seed, answer in record.answers.items()]
    return {**asdict(replace(record, answers={})), "answers": answers}


def _decode(entry: Mapping[str, Any]) -> AttemptRecord:
    answers = {
        answer["seed"]: Completion(
            tuple(answer["token_ids"]),
            tuple(answer["logprobs"]),
            answer["finish_reason"],
            answer["weights_version"],
            tuple((place, version) for place, version in answer["later_versions"]),
        )
        for answer in entry["answers"]
    }
    return AttemptRecord(entry["iteration"], entry["number"], entry["attempt"], answers)
