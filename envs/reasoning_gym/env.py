"""Every task of the reasoning-gym library, with the library's own scorers, for any team that ends with one answer.

Place in the data flow: :func:`make_tasks` draws problems, the environment asks one and scores the answer. Needs the ``reasoning`` extra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.errors import ConfigError, EnvironmentFault
from drmas_pl.parsing import visible
from drmas_pl.parsing.boxed import last_box
from drmas_pl.rewards.base import Verdict
from drmas_pl.types import MetricInfo, Task

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
        super().__init__(draw_tasks(self.dataset, task, seed=seed) if tasks is None else tasks)

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


def make_tasks(task: str, *, size: int, seed: int = 0, **task_config: Any) -> tuple[Task, ...]:
    """Draw problems of one reasoning-gym data set.

    Args:
        task: Name of the data set.
        size: Number of problems, at least 1.
        seed: Seed of the first problem; the n-th has seed ``seed + n``.
        **task_config: Further settings of the data set.

    Returns:
        Tasks whose ``metadata["entry"]`` is the library's own record, which its scorer needs.

    Raises:
        ConfigError: The library is missing, or it does not know the task or a setting.
    """
    return draw_tasks(open_dataset(task, size=size, seed=seed, **task_config), task, seed=seed)


def draw_tasks(dataset: Any, task: str, *, seed: int) -> tuple[Task, ...]:
    """Turn the problems of an opened data set into tasks."""
    return tuple(
        Task(
            id=f"{task}/{seed + index}",
            question=entry["question"],
            reference=() if entry["answer"] is None else (str(entry["answer"]),),
            data_source=f"reasoning_gym/{task}",
            metadata={"entry": entry},
        )
        for index, entry in enumerate(dataset)
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
