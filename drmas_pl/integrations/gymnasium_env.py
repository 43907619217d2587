"""Any Gymnasium environment as a text environment.

Place in the data flow: a :class:`~drmas_pl.team.Team` wraps what is no :class:`~drmas_pl.env.TextEnv` in a :class:`GymnasiumTextEnv`, which
turns observations into text and text into actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from drmas_pl.env import StepResult, TextEnv, as_outcome
from drmas_pl.errors import ConfigError
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Task
from drmas_pl.utils.validation import check_count, check_returned, check_type, to_flag

_NUMBERS = (Discrete, MultiDiscrete, MultiBinary)


def as_text_env(env: Any) -> gymnasium.Env[str, str]:
    """Return an environment as it is if a :class:`TextEnv` is inside, else as a :class:`GymnasiumTextEnv`.

    Raises:
        ConfigError: Its observations or actions have no text form.
        TypeError: It is no Gymnasium environment.
    """
    check_type("env", env, gymnasium.Env, "a Gymnasium environment")
    return env if isinstance(env.unwrapped, TextEnv) else GymnasiumTextEnv(env)


class GymnasiumTextEnv(TextEnv):
    """A Gymnasium environment that is played in text.

    Every sample of a task starts from the same state: ``reset`` gets the task as ``options={"task": task}`` and a seed that is the same for
    the task. Text that names no action is answered with a sentence that says so, and costs a turn. Subclasses may override
    :meth:`observation_to_text` and :meth:`text_to_action` instead of giving functions.

    Args:
        env: The environment, with its wrappers.
        tasks: What to play; by default the environment's own ``tasks``, or else ``episodes`` start states.
        episodes: Number of start states, one for each seed from 0.
        observation_to_text: Describes an observation. By default text stays as it is and numbers of ``Discrete``, ``MultiDiscrete`` and
            ``MultiBinary`` spaces, and tuples and dictionaries of these, are written out.
        text_to_action: Reads an action; raises ValueError for text that names none. By default text stays as it is, and for a ``Discrete``
            space it must be one of its numbers.
        success_reward: Least reward of the step that terminates an episode with which it counts as solved, unless ``info`` holds
            ``success`` or ``is_success``.
        max_turns: Turns after which an episode is truncated.

    Raises:
        ConfigError: Observations or actions have no text form of their own and no function gives them one.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        tasks: Sequence[Task] | None = None,
        episodes: int = 32,
        observation_to_text: Callable[[Any], str] | None = None,
        text_to_action: Callable[[str], Any] | None = None,
        success_reward: float = 1.0,
        max_turns: int = 64,
    ) -> None:
        check_type("env", env, gymnasium.Env, "a Gymnasium environment")
        check_count("episodes", episodes, low=1)
        check_count("max_turns", max_turns, low=1)
        own = getattr(env.unwrapped, "tasks", None) if tasks is None else tasks
        if own is None:
            own = [Task(f"start-{n}", f"start {n}", metadata={"seed": n}) for n in range(episodes)]
        super().__init__(own)
        self.env = env
        self._name = type(env.unwrapped).__name__
        self.success_reward = success_reward
        self.max_turns = max_turns
        # what the environment inside calls success, if it has a word for it
        self.metric = getattr(env.unwrapped, "metric", type(self).metric)  # type: ignore[misc]
        self._describe = observation_to_text
        self._read = text_to_action
        self._check_space("observation", _describes, type(self).observation_to_text, observation_to_text)
        self._check_space("action", _reads, type(self).text_to_action, text_to_action)
        self.turns = 0

    def begin(self, task: Task) -> str:
        """Reset the environment to the state of the task and describe it."""
        self.turns = 0
        seed = int(task.metadata.get("seed", derive_seed("start", task.id) % (1 << 32)))
        observation, _ = self.env.reset(seed=seed, options={"task": task})
        return self._text(observation)

    def act(self, action: str) -> StepResult:
        """Step the environment with the action that the text names."""
        self.turns += 1
        late = self.turns >= self.max_turns
        try:
            move = self.text_to_action(action)
        except ValueError as error:
            return StepResult(f"This names no action: {error}", truncated=late)
        observation, paid, ended, cut, info = self.env.step(move)
        what = f"{self._name}.step"
        if isinstance(info, Mapping):
            # what Gymnasium environments call rewards are components or vectors, no agents' rewards
            info = {name: value for name, value in info.items() if name != "rewards"}
        text, reward, terminated, truncated, known = as_outcome(
            what, self._text(observation), paid, ended, cut, info
        )
        success = known["success"]
        if "success" not in info:
            solved = terminated and reward >= self.success_reward
            success = to_flag(f"{what}: is_success", info.get("is_success", solved))
        truncated = truncated or (late and not terminated)
        return StepResult(text, reward, terminated, truncated, success, known["metrics"])

    def observation_to_text(self, observation: Any) -> str:
        """Describe an observation."""
        return _written(observation) if self._describe is None else self._describe(observation)

    def text_to_action(self, text: str) -> Any:
        """Return the action that a text names.

        Raises:
            ValueError: It names none.
        """
        if self._read is not None:
            return self._read(text)
        space = _space(self.env, "action")
        return _number(text, space) if isinstance(space, Discrete) else text

    def _text(self, observation: Any) -> str:
        text = self.observation_to_text(observation)
        name = type(self.env.unwrapped).__name__
        check_returned(
            f"an observation of {name}", text, str, "a text, or be given one by observation_to_text"
        )
        return text

    def _check_space(self, kind: str, known: Callable[[Any], bool], method: Any, function: Any) -> None:
        """Refuse a space that has no text form, unless there is a function or a method of a subclass for it."""
        word = "observation_to_text" if kind == "observation" else "text_to_action"
        space = _space(self.env, kind)
        if function is not None or method is not getattr(GymnasiumTextEnv, word) or known(space):
            return
        raise ConfigError(
            f"{kind}s of {self._name} are {space}, which agents can neither read nor write; give a function: "
            f"GymnasiumTextEnv(env, {word}=...)"
        )


def _space(env: gymnasium.Env[Any, Any], kind: str) -> Space[Any] | None:
    """Return the space of observations or actions; None where it is not declared."""
    return getattr(env, f"{kind}_space", None)


def _describes(space: Space[Any] | None) -> bool:
    """Tell whether observations of a space can be written out."""
    if isinstance(space, (Dict, Tuple)):
        return all(map(_describes, space.values() if isinstance(space, Dict) else space))
    return _is_text(space) or isinstance(space, _NUMBERS)


def _reads(space: Space[Any] | None) -> bool:
    """Tell whether actions of a space can be read."""
    return _is_text(space) or isinstance(space, Discrete)


def _is_text(space: Space[Any] | None) -> bool:
    return space is None or isinstance(space, Text) or space.dtype is str


def _written(observation: Any) -> Any:
    """Write an observation out; what is of another type than its space says comes back as it is."""
    if isinstance(observation, dict):
        return "\n".join(f"{name}: {_written(value)}" for name, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(str(_written(value)) for value in observation)
    if isinstance(observation, np.ndarray) and observation.dtype.kind in "iub":
        return " ".join(str(int(value)) for value in observation.ravel())
    return str(int(observation)) if isinstance(observation, (int, np.integer)) else observation


def _number(text: str, space: Discrete) -> int:
    """Read one of the numbers of a space."""
    first = int(space.start)
    last = int(space.start + space.n - 1)
    word = text.strip()
    if len(word) > 20 or not word.removeprefix("-").isdecimal() or not first <= int(word) <= last:
        raise ValueError(f"answer with a whole number from {first} to {last}")
    return int(word)
