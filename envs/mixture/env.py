"""Several environments in one run, each with its own tasks, rules and rewards.

Place in the data flow: every task names the part that it belongs to; an episode is played by a copy of that environment alone, so that
teams, rewards and metrics see it as if there were no other. How often each part is played is decided where tasks are drawn
(``data.weights``), since a task's data source is the name of its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from drmas_pl.data.readers import read_tasks
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.errors import EnvironmentFault
from drmas_pl.types import MetricInfo, Task

_PART: Final = "mixture_part"
_SOURCE: Final = "mixture_data_source"


class MixtureEnv(TextEnv):
    """Plays each task in the environment that the task is for.

    Reward and success by part are logged as those of a data source. A part's metrics keep their names, and are averages over the
    trajectories that have them.

    Args:
        parts: Environments by name, at least one.
        tasks: Tasks to draw from when ``reset`` is given none, made by :func:`mixed_tasks`; None mixes the parts' own.

    Raises:
        ValueError: There are no parts.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"parts"})
    metric: ClassVar[str] = "solved"

    def __init__(self, parts: Mapping[str, TextEnv], tasks: Sequence[Task] | None = None) -> None:
        if not parts:
            raise ValueError(
                "parts must name at least one environment, got none; write env.parts.plan_path=1"
            )
        if tasks is None:
            tasks = mixed_tasks({name: env.tasks for name, env in parts.items() if env.tasks})
        super().__init__(tasks)
        self.parts = dict(parts)
        self._playing: TextEnv = next(iter(parts.values()))
        self.metric_info: Mapping[str, MetricInfo] = {  # type: ignore[misc]  # what parts report is known here alone
            metric: replace(info, conditional=True)
            for env in parts.values()
            for metric, info in env.metric_info.items()
        }

    @property
    def playing(self) -> TextEnv:
        """The part that plays the task; the first one before any episode."""
        return self._playing

    @property
    def max_turns(self) -> int | None:
        """Largest number of turns in the part that is played; None where it has no such limit."""
        return getattr(self._playing, "max_turns", None)

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """How the part that is played renders itself."""
        return self._playing.render_mode

    def begin(self, task: Task) -> str:
        """Start an episode of the task's part."""
        name = task.metadata.get(_PART)
        if name not in self.parts:
            raise EnvironmentFault(
                f"task {task.id!r} names no part of the mixture ({', '.join(self.parts)}), got {name!r}; make tasks with mixed_tasks"
            )
        self._playing = self.parts[name].clone()
        metadata = {key: value for key, value in task.metadata.items() if key not in (_PART, _SOURCE)}
        own = replace(task, data_source=task.metadata[_SOURCE], metadata=metadata)
        seed = int(self.np_random.integers(2**31))
        observation, _ = self._playing.reset(seed=seed, options={"task": own})
        return observation

    def act(self, action: str) -> StepResult:
        """Let the part play the action."""
        observation, reward, terminated, truncated, info = self._playing.step(action)
        return StepResult(
            observation, reward, terminated, truncated, info["success"], info["metrics"], info["rewards"]
        )

    def render(self) -> Any:
        """Return what the part that is played renders."""
        return self._playing.render()

    def close(self) -> None:
        """Close all parts."""
        for env in self.parts.values():
            env.close()
        super().close()


def mixed_tasks(parts: Mapping[str, str | Sequence[str] | Sequence[Task]]) -> tuple[Task, ...]:
    """Put the tasks of several environments together; the name of its part becomes a task's data source and begins its id.

    Args:
        parts: Tasks of each part, or files with them, by the part's name.

    >>> mixed_tasks({"a": [Task("1", "one?")], "b": [Task("1", "eins?")]})[1].id
    'b/1'
    """
    return tuple(
        replace(
            task,
            id=f"{name}/{task.id}",
            data_source=name,
            metadata={**task.metadata, _PART: name, _SOURCE: task.data_source},
        )
        for name, source in parts.items()
        for task in _tasks(source)
    )


def _tasks(source: str | Sequence[str] | Sequence[Task]) -> Sequence[Task]:
    """Return tasks as they are, or those of a file, a pattern or several of these."""
    items = [source] if isinstance(source, str) else source
    tasks = [item for item in items if isinstance(item, Task)]
    return tasks or read_tasks([str(item) for item in items])
