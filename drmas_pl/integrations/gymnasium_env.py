"""Any Gymnasium environment as a text environment.

Place in the data flow: a :class:`~drmas_pl.team.Team` wraps what is no :class:`~drmas_pl.env.TextEnv` in a :class:`GymnasiumTextEnv`, which
turns observations into text and text into actions; :func:`make_text_env` makes one from a registered id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, get_args

import gymnasium
from gymnasium.spaces import Discrete, Space

from drmas_pl.env import StepResult, TextEnv, as_outcome
from drmas_pl.errors import ConfigError
from drmas_pl.integrations import spaces
from drmas_pl.seeding import derive_seed
from drmas_pl.types import MetricInfo, Task
from drmas_pl.utils.validation import check_count, check_returned, check_type, to_flag

OnIllegal = Literal["continue", "end", "random"]
ILLEGAL_ACTIONS: Final = MetricInfo(
    "number of utterances that named no action, or one that was not possible",
    "Turns lost to form.",
    "towards 0",
)


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
    the task. Subclasses may override :meth:`observation_to_text` and :meth:`text_to_action` instead of giving functions. A mask in
    ``info["action_mask"]`` says which numbers of a ``Discrete`` space are possible; these are listed with every observation.

    Args:
        env: The environment, with its wrappers.
        tasks: What to play; by default the environment's own ``tasks``, or else ``episodes`` start states.
        episodes: Number of start states, one for each seed from 0.
        observation_to_text: Describes an observation. By default text stays as it is; numbers, arrays of at most 2048 numbers, and tuples
            and dictionaries of these, are written out; with the render mode ``ansi`` the rendered text is shown instead.
        text_to_action: Reads an action; raises ValueError for text that names none. By default text stays as it is, and for a ``Discrete``,
            ``MultiDiscrete`` or ``MultiBinary`` space it must be its numbers.
        instructions: What the first observation begins with, such as the rules.
        show_actions: Whether the first observation says what an action is.
        action_names: What the numbers of a ``Discrete`` space are called; an action is then a name or a number.
        on_illegal: What text that names no possible action leads to: ``continue`` answers with a sentence that says so and costs a turn;
            ``end`` ends the episode without success; ``random`` plays a possible action that the seed of the start state decides.
        illegal_reward: Reward of such text, usually 0 or below.
        success_reward: Least reward of the step that terminates an episode with which it counts as solved, unless ``info`` holds
            ``success`` or ``is_success``.
        max_turns: Turns after which an episode is truncated.

    Raises:
        ConfigError: Observations or actions have no text form of their own and no function gives them one.
        ValueError: An argument is out of its range.
    """

    metric_info: ClassVar[Mapping[str, MetricInfo]] = {"illegal_actions": ILLEGAL_ACTIONS}

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        tasks: Sequence[Task] | None = None,
        episodes: int = 32,
        observation_to_text: Callable[[Any], str] | None = None,
        text_to_action: Callable[[str], Any] | None = None,
        instructions: str = "",
        show_actions: bool = True,
        action_names: Sequence[str] = (),
        on_illegal: OnIllegal = "continue",
        illegal_reward: float = 0.0,
        success_reward: float = 1.0,
        max_turns: int = 64,
    ) -> None:
        check_type("env", env, gymnasium.Env, "a Gymnasium environment")
        check_count("episodes", episodes, low=1)
        check_count("max_turns", max_turns, low=1)
        if on_illegal not in get_args(OnIllegal):
            raise ValueError(
                f"on_illegal must be one of {', '.join(get_args(OnIllegal))}, got {on_illegal!r}"
            )
        own = getattr(env.unwrapped, "tasks", None) if tasks is None else tasks
        super().__init__(make_tasks(size=episodes) if own is None else own)
        self.env = env
        self._name = type(env.unwrapped).__name__
        self.instructions = instructions
        self.show_actions = show_actions
        self.action_names = tuple(action_names)
        self.on_illegal = on_illegal
        self.illegal_reward = illegal_reward
        self.success_reward = success_reward
        self.max_turns = max_turns
        # what the environment inside calls success, if it has a word for it
        self.metric = getattr(env.unwrapped, "metric", type(self).metric)  # type: ignore[misc]
        self._describe = observation_to_text
        self._read = text_to_action
        self._rendered = env.render_mode == "ansi"
        if not self._rendered:
            self._check_space("observation", spaces.can_write, observation_to_text)
        self._check_space("action", spaces.can_read, text_to_action)
        self._check_names()
        self.turns = 0
        self.illegal_actions = 0
        self.legal: tuple[int, ...] | None = None

    def begin(self, task: Task) -> str:
        """Reset the environment to the state of the task, describe it and say what an action is."""
        self.turns = 0
        self.illegal_actions = 0
        seed = int(task.metadata.get("seed", derive_seed("start", task.id) % (1 << 32)))
        space = _space(self.env, "action")
        if self.on_illegal == "random" and space is not None:
            space.seed(seed)
        observation, info = self.env.reset(seed=seed, options={"task": task})
        self.legal = spaces.legal_actions(info.get("action_mask"), space)
        actions = ""
        if self.show_actions and self.legal is None and self._read is None:
            actions = spaces.describe_actions(space, names=self.action_names)
        return "\n\n".join(part for part in (self.instructions, self._shown(observation), actions) if part)

    def act(self, action: str) -> StepResult:
        """Step the environment with the action that the text names."""
        self.turns += 1
        try:
            move = self.text_to_action(action)
        except ValueError as error:
            return self._play_illegal(error)
        return self._play(move)

    def observation_to_text(self, observation: Any) -> str:
        """Describe an observation."""
        if self._describe is not None:
            return self._describe(observation)
        if self._rendered:
            return spaces.render_as_text(str(self.env.render()))
        text: str = spaces.write(observation)
        return text

    def text_to_action(self, text: str) -> Any:
        """Return the action that a text names.

        Raises:
            ValueError: It names none.
        """
        if self._read is not None:
            return self._read(text)
        return spaces.read(text, _space(self.env, "action"), names=self.action_names, legal=self.legal)

    def _play(self, move: Any, *, penalty: float = 0.0) -> StepResult:
        observation, paid, ended, cut, info = self.env.step(move)
        what = f"{self._name}.step"
        if isinstance(info, Mapping):
            # what Gymnasium environments call rewards are components or vectors, no agents' rewards
            info = {name: value for name, value in info.items() if name != "rewards"}
            self.legal = spaces.legal_actions(info.get("action_mask"), _space(self.env, "action"))
        text, reward, terminated, truncated, known = as_outcome(
            what, self._shown(observation, over=bool(ended or cut)), paid, ended, cut, info
        )
        success = known["success"]
        if "success" not in info:
            solved = terminated and reward >= self.success_reward
            success = to_flag(f"{what}: is_success", info.get("is_success", solved))
        truncated = truncated or (self._late and not terminated)
        metrics = {**known["metrics"], **self._metrics()}
        return StepResult(text, reward + penalty, terminated, truncated, success, metrics)

    def _play_illegal(self, error: ValueError) -> StepResult:
        """Answer text that names no possible action, as ``on_illegal`` says."""
        self.illegal_actions += 1
        space = _space(self.env, "action")
        if self.on_illegal == "random" and space is not None:
            return self._play(self._random_action(space), penalty=self.illegal_reward)
        ends = self.on_illegal == "end"
        return StepResult(
            f"This names no action: {error}",
            self.illegal_reward,
            terminated=ends,
            truncated=self._late and not ends,
            metrics=self._metrics(),
        )

    def _random_action(self, space: Space[Any]) -> Any:
        if self.legal and isinstance(space, Discrete):
            return self.legal[int(space.np_random.integers(len(self.legal)))]
        return space.sample()

    @property
    def _late(self) -> bool:
        return self.turns >= self.max_turns

    def _metrics(self) -> dict[str, float]:
        return {"illegal_actions": float(self.illegal_actions)}

    def _shown(self, observation: Any, *, over: bool = False) -> str:
        """Describe an observation, and say what is possible where there is a mask."""
        text = self.observation_to_text(observation)
        check_returned(
            f"an observation of {self._name}", text, str, "a text, or be given one by observation_to_text"
        )
        if over or self.legal is None or not self.show_actions:
            return text
        actions = spaces.describe_actions(
            _space(self.env, "action"), names=self.action_names, legal=self.legal
        )
        return f"{text}\n{actions}"

    def _check_names(self) -> None:
        space = _space(self.env, "action")
        if self.action_names and not (isinstance(space, Discrete) and len(self.action_names) == space.n):
            raise ValueError(
                f"action_names must hold one name for each action of {self._name}, {space}, got {len(self.action_names)} names"
            )

    def _check_space(self, kind: str, known: Callable[[Any], bool], function: Any) -> None:
        """Refuse a space that has no text form, unless there is a function or a method of a subclass for it."""
        word = "observation_to_text" if kind == "observation" else "text_to_action"
        space = _space(self.env, kind)
        overridden = getattr(type(self), word) is not getattr(GymnasiumTextEnv, word)
        if function is not None or overridden or known(space):
            return
        raise ConfigError(
            f"{kind}s of {self._name} are {space}, which agents can neither read nor write; give a function: "
            f"GymnasiumTextEnv(env, {word}=...)"
        )


def make_text_env(
    id: str,
    *,
    render: bool = False,
    tasks: Sequence[Task] | None = None,
    episodes: int = 32,
    observation_to_text: Callable[[Any], str] | None = None,
    text_to_action: Callable[[str], Any] | None = None,
    instructions: str = "",
    show_actions: bool = True,
    action_names: Sequence[str] = (),
    on_illegal: OnIllegal = "continue",
    illegal_reward: float = 0.0,
    success_reward: float = 1.0,
    max_turns: int = 64,
    **arguments: Any,
) -> gymnasium.Env[str, str]:
    """Make a registered Gymnasium environment in text; one that is a text environment already stays as it is.

    Args:
        id: Its id, such as ``FrozenLake-v1``; ``my_module:MyEnv-v0`` imports a module that registers it first.
        render: Show what the environment renders in its mode ``ansi`` instead of its observations; what it colours stands in brackets.
        tasks: See :class:`GymnasiumTextEnv`, as with all that follow.
        episodes: Number of start states.
        observation_to_text: Describes an observation.
        text_to_action: Reads an action.
        instructions: What the first observation begins with.
        show_actions: Whether the first observation says what an action is.
        action_names: What the numbers of a ``Discrete`` space are called.
        on_illegal: What text that names no possible action leads to.
        illegal_reward: Reward of such text.
        success_reward: Least reward of the last step of a solved episode.
        max_turns: Turns after which an episode is truncated.
        **arguments: Further arguments of the environment.

    Raises:
        ConfigError: Gymnasium cannot make it, or it cannot be played in text.
    """
    if render:
        arguments = {"render_mode": "ansi", **arguments}
    try:
        env: gymnasium.Env[Any, Any] = gymnasium.make(id, **arguments)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(f"Gymnasium cannot make {id!r} with {arguments}: {error}") from error
    if isinstance(env.unwrapped, TextEnv):
        return env
    return GymnasiumTextEnv(
        env,
        tasks=tasks,
        episodes=episodes,
        observation_to_text=observation_to_text,
        text_to_action=text_to_action,
        instructions=instructions,
        show_actions=show_actions,
        action_names=action_names,
        on_illegal=on_illegal,
        illegal_reward=illegal_reward,
        success_reward=success_reward,
        max_turns=max_turns,
    )


def make_tasks(*, size: int, seed: int = 0, data_source: str = "start") -> tuple[Task, ...]:
    """Make tasks that are start states, told apart by the seed that an environment is reset with.

    Args:
        size: Number of tasks, at least 1.
        seed: Seed of the first one; the n-th has seed ``seed + n``, so splits need seeds at least ``size`` apart.
        data_source: Name of the collection, and first part of every id.

    >>> [task.id for task in make_tasks(size=2, seed=5)]
    ['start-5', 'start-6']
    """
    check_count("size", size, low=1)
    return tuple(
        Task(f"{data_source}-{n}", f"start {n}", data_source=data_source, metadata={"seed": n})
        for n in range(seed, seed + size)
    )


def _space(env: gymnasium.Env[Any, Any], kind: str) -> Space[Any] | None:
    """Return the space of observations or actions; None where it is not declared."""
    return getattr(env, f"{kind}_space", None)
