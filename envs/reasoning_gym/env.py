"""Every task of the reasoning-gym library, with the library's own scorers, for any team that ends with one answer.

Place in the data flow: :func:`make_tasks` draws problems, the environment asks one and scores the answer. Needs the ``reasoning`` extra.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.envs.reasoning_gym.cached import CachedTasks
from drmas_pl.errors import ConfigError, EnvironmentFault
from drmas_pl.parsing import visible
from drmas_pl.parsing.boxed import last_box
from drmas_pl.rewards.base import Verdict
from drmas_pl.types import MetricInfo, Task
from drmas_pl.utils.questions import normalise

log = logging.getLogger(__name__)
# how often as many problems are drawn as are wanted, before a task counts as having fewer
MAX_DRAWS: Final = 10
PROGRESS_SECONDS: Final = 10.0
# problems that took longer are kept for the next run
SLOW_SECONDS: Final = 5.0
EVALUATING_SCORERS: Final = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)


class ReasoningGymEnv(TextEnv):
    r"""Asks one procedural problem and scores one answer; the reward is the library's score, in [0, 1].

    The answer is what stands in the last ``\boxed{…}``, else in the last ``<answer>…</answer>``, else the whole text. Success means
    the full score.

    Args:
        task: Name of a reasoning-gym data set.
        size: Number of problems to draw, at least 1.
        seed: Seed of the first problem; the n-th has seed ``seed + n``, so splits need seeds at least ``size`` apart.
        tasks: Problems made earlier by :func:`make_tasks` with the same settings; None draws them here.
        allow_evaluating_scorers: Permit the tasks in :data:`EVALUATING_SCORERS`, whose scorers evaluate the model's text as code in this
            very process. Only for text that you trust.
        **task_config: Further settings of the data set, such as ``max_terms``.

    Raises:
        ConfigError: The library is missing, or it does not know the task or a setting, or the task's scorer evaluates model text.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"dataset"})
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "score": MetricInfo(
            "the library's score of the answer, in [0, 1]; 0 without an answer",
            "Partly right answers count in part.",
            "rises; at least success",
        ),
        "unscorable_answer": MetricInfo(
            "1 if the library's scorer could not read the answer, else 0",
            "Answers that earn 0 for their form.",
            "near 0",
        ),
    }

    def __init__(
        self,
        task: str = "chain_sum",
        *,
        size: int = 500,
        seed: int = 0,
        tasks: Sequence[Task] | None = None,
        allow_evaluating_scorers: bool = False,
        **task_config: Any,
    ) -> None:
        if task in EVALUATING_SCORERS and not allow_evaluating_scorers:
            raise ConfigError(
                f"the scorer of {task!r} evaluates the model's text as code in this process; "
                "choose another task, or set allow_evaluating_scorers=true for text that you trust"
            )
        self.dataset = open_dataset(task, size=size, seed=seed, **task_config)
        super().__init__(tuple(iterate_tasks(self.dataset, task, seed=seed)) if tasks is None else tasks)

    def begin(self, task: Task) -> str:
        """Return the question."""
        if "entry" not in task.metadata:
            raise ValueError(
                f"task {task.id!r} has no metadata['entry']; make tasks for this environment with make_tasks"
            )
        return task.question

    def judge(self, text: str) -> Verdict:
        """Score a solution of the current task without ending the episode; for diagnostics that must not be rewarded.

        Raises:
            RuntimeError: No task is being played.
            EnvironmentFault: The scorer fails on the right answer too.
        """
        answer = extract_answer(text)
        score = self._score(answer)
        return (
            Verdict("correct", "string", answer)
            if score is not None and score >= 1
            else Verdict("wrong", "different", answer)
        )

    def act(self, action: str) -> StepResult:
        """Score the final answer and end the episode."""
        score = self._score(extract_answer(action))
        reward = score or 0.0
        metrics = {"score": reward, "unscorable_answer": float(score is None)}
        return StepResult(
            observation="", reward=reward, terminated=True, success=reward >= 1, metrics=metrics
        )

    def _score(self, answer: str) -> float | None:
        """Return the library's score; None when only this answer makes its scorer fail."""
        if self.task is None:
            raise RuntimeError("ReasoningGymEnv.judge called before reset; there is no task to judge against")
        entry = self.task.metadata["entry"]
        try:
            return float(self.dataset.score_answer(answer, entry=entry))
        except Exception:  # scorers raise whatever their parsers do
            pass
        try:
            self.dataset.score_answer(entry["answer"], entry=entry)
        except Exception as error:
            raise EnvironmentFault(
                f"the scorer of task {self.task.id!r} fails on the right answer: {error!r}; drop the task"
            ) from error
        return None


def make_tasks(
    task: str, *, size: int, seed: int = 0, share: tuple[int, int] = (0, 100), **task_config: Any
) -> tuple[Task, ...]:
    """Draw different problems of one reasoning-gym data set.

    Every question belongs to one of a hundred shares, so that splits with other shares are disjoint however few problems there are. More
    is drawn in the place of what repeats itself or belongs to another split, at most ``size`` :data:`MAX_DRAWS` times.

    Args:
        task: Name of the data set.
        size: Number of problems wanted, at least 1; a warning says when there are fewer.
        seed: Seed of the first problem that is drawn; the n-th has seed ``seed + n``.
        share: First share that is kept, and the one after the last, out of 0 to 100.
        **task_config: Further settings of the data set.

    Returns:
        Tasks whose ``metadata["entry"]`` is the library's own record, which its scorer needs.

    Raises:
        ConfigError: The library is missing, or it does not know the task or a setting; or all problems belong to other shares.
        ValueError: ``share`` is no range within 0 to 100.
    """
    low, high = share
    if not 0 <= low < high <= 100:
        raise ValueError(f"share must be two numbers out of 0 to 100, the first the smaller one, got {share}")
    if size < 1:
        raise ConfigError(f"size must be at least 1 problem, got {size}")
    drawn_before = CachedTasks(task, {"size": size, "seed": seed, "share": [low, high], **task_config})
    if (found := drawn_before.read()) is not None:
        return found
    begun = time.monotonic()
    kept = _different(task, size, seed, range(low, high), task_config)
    if not kept:
        raise ConfigError(
            f"reasoning-gym draws too few different problems of {task!r} for shares {low} to {high} of the splits; make them more varied "
            "with the settings of the task, or choose another one"
        )
    if len(kept) < size:
        log.warning(
            "reasoning-gym draws only %d different problems of %s, %d were wanted", len(kept), task, size
        )
    tasks = tuple(kept.values())
    if time.monotonic() - begun > SLOW_SECONDS:
        drawn_before.write(tasks)
    return tasks


def _different(
    task: str, size: int, seed: int, share: range, task_config: Mapping[str, Any]
) -> dict[str, Task]:
    """Return up to ``size`` problems of certain shares by their normalised question."""
    told = time.monotonic()
    kept: dict[str, Task] = {}
    for drawn in _draws(task, size, seed, task_config):
        key = normalise(drawn.question)
        if zlib.crc32(key.encode()) % 100 in share:
            kept.setdefault(key, drawn)
        if len(kept) == size:
            break
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            log.warning("drawing problems of %s: %d of %d", task, len(kept), size)
    return kept


def _draws(task: str, size: int, seed: int, task_config: Mapping[str, Any]) -> Iterator[Task]:
    """Draw problems in blocks of ``size``, since some data sets draw all of theirs when they are opened."""
    for start in range(seed, seed + MAX_DRAWS * size, size):
        yield from iterate_tasks(open_dataset(task, size=size, seed=start, **task_config), task, seed=start)


def iterate_tasks(dataset: Any, task: str, *, seed: int) -> Iterator[Task]:
    """Turn the problems of an opened data set into tasks, one by one as they are drawn."""
    for index, entry in enumerate(dataset):
        yield Task(
            id=f"{task}/{seed + index}",
            question=entry["question"],
            reference=() if entry["answer"] is None else (str(entry["answer"]),),
            data_source=f"reasoning_gym/{task}",
            metadata={"entry": entry},
        )


def open_dataset(task: str, *, size: int, seed: int, **task_config: Any) -> Any:
    """Open a reasoning-gym data set; see :func:`make_tasks`."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            "env=reasoning_gym needs the reasoning-gym library; install drmas_pl[reasoning]"
        ) from error
    if task not in DATASETS:
        raise ConfigError(f"reasoning-gym has no task {task!r}; it has {', '.join(sorted(DATASETS))}")
    try:
        return reasoning_gym.create_dataset(task, size=size, seed=seed, **task_config)
    except (TypeError, AssertionError, ValueError) as error:
        raise ConfigError(
            f"reasoning-gym rejects the settings size={size}, seed={seed}, {task_config} of {task!r}: {error}"
        ) from error


def extract_answer(text: str) -> str:
    r"""Find the answer in a solution.

    >>> extract_answer(r"so \boxed{4}"), extract_answer("so <answer> 4 </answer>"), extract_answer(" 4 ")
    ('4', '4', '4')
    """
    text = visible(text)
    box = last_box(text)
    if box is not None:
        return (box.content or "").strip()
    _, opening, tail = text.rpartition("<answer>")
    return tail.partition("</answer>")[0].strip() if opening else text.strip()
