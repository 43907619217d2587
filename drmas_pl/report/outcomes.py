"""What a run achieved: scores of its first and its last evaluation, with intervals over tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from drmas_pl.report.confidence import share_interval
from drmas_pl.report.run_files import RunFiles, mean
from drmas_pl.report.trajectory_statistics import TrajectoryStatistics

SPLITS: Final = {
    "validation": "validation, sampled",
    "validation-greedy": "validation, greedy",
    "test": "test, sampled",
    "test-greedy": "test, greedy",
    "train": "training tasks",
}
# Iterations at each end of a run over which training scores are averaged.
ENDS: Final = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """A score before and after training.

    Attributes:
        split: What was played, such as ``validation-greedy``.
        label: The same for people.
        before: Score of the first evaluation, with its interval; None where there is only one.
        after: Score of the last evaluation, with its interval.
        iterations: When they were played.
        tasks: Tasks behind a score; 0 if unknown, and then the intervals have no width.
        changed: Tasks that went from wrong to right and from right to wrong, of recorded trajectories; None without them.
    """

    split: str
    label: str
    before: tuple[float, float, float] | None
    after: tuple[float, float, float]
    iterations: tuple[int, int]
    tasks: int
    changed: tuple[int, int] | None = None


def find_outcomes(
    run: RunFiles, statistics: Mapping[str, Mapping[int, TrajectoryStatistics]]
) -> list[dict[str, Any]]:
    """Return the scores of every split that was evaluated; of training where none was."""
    found = [_evaluation(run, split, statistics.get(split, {})) for split in list(SPLITS)[:-1]]
    outcomes = [outcome for outcome in found if outcome is not None]
    if not outcomes:
        training = _training(run)
        outcomes = [] if training is None else [training]
    return [asdict(outcome) for outcome in outcomes]


def _evaluation(run: RunFiles, split: str, statistics: Mapping[int, TrajectoryStatistics]) -> Outcome | None:
    points = run.series(f"{split}/success")
    if not points:
        return None
    counts = dict(run.series(f"{split}/tasks"))
    (first, before), (last, after) = points[0], points[-1]
    return Outcome(
        split,
        SPLITS[split],
        None if first == last else _with_interval(before, counts.get(first, 0)),
        _with_interval(after, counts.get(last, 0)),
        (first, last),
        int(counts.get(last, 0)),
        _changed(statistics.get(first), statistics.get(last)) if first != last else None,
    )


def _training(run: RunFiles) -> Outcome | None:
    points = run.series("train/success")
    if not points:
        return None
    values = [value for _, value in points]
    width = min(ENDS, max(1, len(values) // 2))
    tasks = int(run.setting("data.tasks_per_iteration", 0) or 0) * width
    before = None if len(values) < 2 else _with_interval(mean(values[:width]), tasks)
    ends = (points[0][0], points[-1][0])
    return Outcome(
        "train", SPLITS["train"], before, _with_interval(mean(values[-width:]), tasks), ends, tasks
    )


def _with_interval(share: float, count: float) -> tuple[float, float, float]:
    if count < 1 or not 0 <= share <= 1:
        return share, share, share
    return share, *share_interval(share, count)


def _changed(
    before: TrajectoryStatistics | None, after: TrajectoryStatistics | None
) -> tuple[int, int] | None:
    if before is None or after is None:
        return None
    pairs = [(before.solved[key], after.solved[key]) for key in before.solved.keys() & after.solved.keys()]
    if not pairs:
        return None
    return pairs.count((False, True)), pairs.count((True, False))
