"""The environment a team plays in: a Gymnasium environment whose observations and actions are text.

An environment knows rules, tools and reward; of agents it knows at most the names of those that it pays. Authors subclass
:class:`TextEnv` and write two methods, ``begin`` and ``act``. Episodes start from a :class:`~drmas_pl.types.Task`, passed through
``reset(options={"task": task})`` or drawn from the environment's own tasks. There is no autoreset.
"""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from drmas_pl.types import MetricInfo, Task
from drmas_pl.utils.validation import check_returned, shown, to_flag, to_metrics, to_number

Self = TypeVar("Self", bound="TextEnv")


class FreeText(Space[str]):
    """Every string up to ``max_length`` characters (Gymnasium's own ``Text`` space rejects natural language)."""

    def __init__(self, max_length: int = 1_000_000, *, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1 character, got {max_length}")
        super().__init__(dtype=str, seed=seed)
        self.max_length = max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draw a short random lower-case string."""
        length = int(self.np_random.integers(1, min(self.max_length, 16) + 1))
        return "".join(chr(97 + int(code)) for code in self.np_random.integers(0, 26, size=length))

    def contains(self, x: Any) -> bool:
        """Tell whether ``x`` is a string within the limit."""
        return isinstance(x, str) and len(x) <= self.max_length

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no flat array form."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeText) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash(("FreeText", self.max_length))

    def __repr__(self) -> str:
        return f"FreeText({self.max_length})"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action led to.

    Attributes:
        observation: Text shown to the team.
        reward: Reward of this step, a finite number; a trajectory's reward is the sum.
        terminated: The rules ended the episode.
        truncated: A limit ended it; never a success.
        success: The task counts as solved; only read when the episode is over.
        metrics: Numbers to be averaged over trajectories; one that has none of a name counts as 0 unless ``metric_info`` says otherwise.
        rewards: What single agents are paid besides, by name, at any step, also agents that spoke long ago.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)


Outcome = tuple[str, float, bool, bool, dict[str, Any]]


def as_outcome(
    what: str, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
) -> Outcome:
    """Return the outcome of a step with plain values: numbers and flags of numpy or torch become Python's.

    Args:
        what: The method that returned it, for messages.
        observation: Must be text.
        reward: Must be a finite number.
        terminated: Must be a truth value.
        truncated: Must be a truth value.
        info: Must be a mapping; ``success``, ``metrics`` and ``rewards`` are filled in where they are missing.

    Raises:
        ContractError: Something is of another type, or a number is not finite.
    """
    check_returned(f"{what}: the observation", observation, str, "a text")
    check_returned(f"{what}: info", info, Mapping, "a mapping")
    return (
        observation,
        to_number(f"{what}: the reward", reward),
        to_flag(f"{what}: terminated", terminated),
        to_flag(f"{what}: truncated", truncated),
        {
            **info,
            "success": to_flag(f"{what}: success", info.get("success", False)),
            "metrics": to_metrics(f"{what}: metrics", info.get("metrics", {})),
            "rewards": to_metrics(f"{what}: rewards", info.get("rewards", {})),
        },
    )


def write_joint_action(actions: Mapping[str, str]) -> str:
    """Write the actions of agents that move at once as the one text that an environment is given.

    Args:
        actions: Action of each agent by name.

    >>> write_joint_action({"first": "rock", "second": "paper"})
    '{"first": "rock", "second": "paper"}'
    """
    return json.dumps(dict(actions), ensure_ascii=False)


def read_joint_action(text: str) -> dict[str, str]:
    """Return the action of each agent by name; nobody's for a text that is no joint action.

    >>> read_joint_action('{"first": "rock", "second": "paper"}'), read_joint_action("rock")
    ({'first': 'rock', 'second': 'paper'}, {})
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: action for name, action in found.items() if isinstance(action, str)}


class TextEnv(gymnasium.Env[str, str]):
    """A text environment played one task at a time.

    Subclasses implement :meth:`begin` and :meth:`act`; ``metric`` is what they call the success rate, and ``metric_info``
    describes the numbers in ``StepResult.metrics`` by name. Attributes named in ``shared`` (retriever, grader pool, task list) are heavy or
    stateless and are shared between clones; everything else is copied.

    Args:
        tasks: Tasks to draw from when ``reset`` is given none.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": None}
    shared: ClassVar[frozenset[str]] = frozenset()
    metric: ClassVar[str] = "success"
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {}

    def __init__(self, tasks: Sequence[Task] = ()) -> None:
        if isinstance(tasks, (str, Task)) or not all(isinstance(task, Task) for task in tasks):
            raise TypeError(f"tasks must be a sequence of Task, got {shown(tasks)}")
        self.tasks: tuple[Task, ...] = tuple(tasks)
        self.observation_space = FreeText()
        self.action_space = FreeText()
        self.task: Task | None = None
        self._over = True

    @property
    def playing(self) -> TextEnv:
        """The environment whose rules hold: this one, or in a mixture of several the one that plays the task."""
        return self

    @abstractmethod
    def begin(self, task: Task) -> str:
        """Set up the state for ``task`` and return the first observation, usually the question."""

    @abstractmethod
    def act(self, action: str) -> StepResult:
        """Apply one action to the state; never raises for malformed text, which is the model's business."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seeds ``self.np_random``; also decides which own task is drawn.
            options: ``{"task": Task}`` chooses the task.

        Raises:
            ContractError: ``begin`` returned no text.
            ValueError: No task was given and the environment has none of its own.
        """
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            if not self.tasks:
                raise ValueError(
                    f"{type(self).__name__}.reset needs options={{'task': Task(...)}}: it was built without tasks of its own"
                )
            task = self.tasks[int(self.np_random.integers(len(self.tasks)))]
        self.task = task
        self._over = False
        observation = self.begin(task)
        what = f"what {type(self).__name__}.begin returns"
        check_returned(what, observation, str, "a text, the first observation")
        return observation, {"task_id": task.id}

    def step(self, action: str) -> Outcome:
        """Play one action; ``info`` holds ``success``, ``metrics`` and ``rewards``.

        Raises:
            ContractError: ``act`` returned something else than a :class:`StepResult` of finite numbers and truth values.
            RuntimeError: The episode is over or was never started.
        """
        if self._over:
            raise RuntimeError(
                f"{type(self).__name__}.step called after the end of an episode; call reset first"
            )
        what = f"{type(self).__name__}.act"
        result = self.act(action)
        check_returned(f"what {what} returns", result, StepResult, "a StepResult")
        info = {"success": result.success, "metrics": result.metrics, "rewards": result.rewards}
        outcome = as_outcome(
            what, result.observation, result.reward, result.terminated, result.truncated, info
        )
        _, _, terminated, truncated, info = outcome
        self._over = terminated or truncated
        info["success"] = info["success"] and terminated
        return outcome

    def clone(self: Self) -> Self:
        """Copy the state; names in ``shared`` and the task list keep pointing at the same objects."""
        twin = copy.copy(self)
        keep = self.shared | {"tasks", "task", "observation_space", "action_space", "spec"}
        memo: dict[int, Any] = {id(value): value for name, value in vars(self).items() if name in keep}
        for name, value in vars(self).items():
            setattr(twin, name, copy.deepcopy(value, memo))
        return twin

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """Copying a wrapped environment must not copy what is shared either."""
        memo[id(self)] = twin = self.clone()
        return twin
