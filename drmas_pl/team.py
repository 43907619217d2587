"""The team: whose turn it is, who sees what, and which utterance becomes the environment's action.

A team is a Gymnasium wrapper around a :class:`~drmas_pl.env.TextEnv`, so one rollout loop serves every topology. Authors write
``begin`` (who speaks first) and ``play`` (what follows from an utterance). Words follow PettingZoo: ``possible_agents``,
``agent_selection``, ``observe``.
"""

from __future__ import annotations

import copy
import functools
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeVar

import gymnasium

from drmas_pl.env import Outcome, TextEnv, as_outcome
from drmas_pl.errors import ContractError
from drmas_pl.integrations.gymnasium_env import as_text_env
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.types import Message, MetricInfo, Observation
from drmas_pl.utils.validation import check_returned, to_metrics, to_number

Self = TypeVar("Self", bound="Team")
OnInvalid = Literal["end", "continue"]
log = logging.getLogger(__name__)
# a good deal more than any prompt holds, and less than a quarter of a second to encode
MAX_OBSERVATION_CHARS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Move:
    """What a team makes of one utterance.

    Attributes:
        speakers: Who speaks next, in order; ignored when the episode is over afterwards.
        action: Text for the environment, or None when the environment is not stepped.
        messages: What is added to the history before the environment answers.
        ends: The team gives up here: the episode terminates without success.
        local_reward: Reward of the utterance itself, given to its author alone.
        metrics: Numbers to be averaged over trajectories; one that has none of a name counts as 0 unless ``metric_info`` says otherwise.
    """

    speakers: tuple[str, ...] = ()
    action: str | None = None
    messages: tuple[Message, ...] = ()
    ends: bool = False
    local_reward: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)


class Team(gymnasium.Wrapper[str, "str | Parsed", str, str]):
    """Turns a text environment into a game of several named agents.

    Subclasses set ``possible_agents`` and ``grammars`` and implement :meth:`begin` and :meth:`play`; ``metric_info`` describes the
    numbers in ``Move.metrics`` by name, and ``highlights`` names metrics, of team or environment, that deserve a
    line where a run sums itself up.

    Args:
        env: The environment; one that is no text environment is played as a :class:`~drmas_pl.integrations.gymnasium_env.GymnasiumTextEnv`.
        on_invalid: What an utterance that is not valid leads to: ``end`` the episode without reward, or ``continue`` with
            whatever :meth:`recover` says.
        max_observation_chars: Length that questions and observations are cut to, with a note that says so, before anybody encodes them.
        history_length: Number of latest messages that an agent may see; None shows all.
    """

    possible_agents: ClassVar[tuple[str, ...]] = ()
    grammars: ClassVar[Mapping[str, Grammar]] = {}
    highlights: ClassVar[tuple[str, ...]] = ()
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {}

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        on_invalid: OnInvalid = "end",
        max_observation_chars: int = MAX_OBSERVATION_CHARS,
        history_length: int | None = None,
    ) -> None:
        super().__init__(as_text_env(env))  # type: ignore[arg-type]
        if on_invalid not in ("end", "continue"):
            raise ValueError(f"on_invalid must be 'end' or 'continue', got {on_invalid!r}")
        if max_observation_chars < 1:
            raise ValueError(f"max_observation_chars must be at least 1, got {max_observation_chars}")
        if history_length is not None and history_length < 1:
            raise ValueError(
                f"history_length must be at least 1 message or None for all, got {history_length}"
            )
        self.on_invalid = on_invalid
        self.max_observation_chars = max_observation_chars
        self.history_length = history_length
        self.history: list[Message] = []
        self.question = ""
        self.turn = 0
        self._queue: deque[str] = deque()
        self._metrics: dict[str, float] = {}

    @abstractmethod
    def begin(self) -> tuple[str, ...]:
        """Reset the team's own state and return who speaks first."""

    @abstractmethod
    def play(self, agent: str, parsed: Parsed) -> Move:
        """Decide what follows from a *valid* utterance of ``agent``."""

    def interpret(self, agent: str, parsed: Parsed) -> Parsed:
        """Replace what the grammar said before the team acts on it, for example a missing verdict by a rejection."""
        return parsed

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Decide what follows from an utterance that is not valid, under ``on_invalid='continue'``.

        By default the environment is stepped with an empty action, which costs a turn, and the first speakers go again.
        """
        return Move(self.begin(), action="")

    def observed(self, observation: str) -> Message:
        """Turn an observation of the environment into a message of the history."""
        return Message("env", "information", observation)

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return the messages that ``agent`` may see, oldest first; by default the latest ``history_length``."""
        return tuple(self.history if self.history_length is None else self.history[-self.history_length :])

    @property
    def agent_selection(self) -> str | None:
        """Name of the agent whose turn it is; None when the episode is over."""
        return self._queue[0] if self._queue else None

    @property
    def unwrapped(self) -> TextEnv:  # type: ignore[override]
        """The innermost environment."""
        env = self.env.unwrapped
        assert isinstance(env, TextEnv)
        return env

    def declared_metrics(self) -> dict[str, MetricInfo]:
        """Return what environment and team declare about their metrics, by name."""
        return {**getattr(self.env.unwrapped, "metric_info", {}), **self.metric_info}

    def turns_left(self) -> int | None:
        """Environment turns that remain, this one included, when the environment declares ``max_turns``."""
        limit = getattr(self.env.unwrapped, "max_turns", None)
        return None if limit is None else max(int(limit) - self.turn, 0)

    def observe(self, agent: str) -> Observation:
        """Return what ``agent`` sees now."""
        if agent not in self.possible_agents:
            raise ValueError(f"unknown agent {agent!r}; this team has {list(self.possible_agents)}")
        return Observation(self.question, self.visible_messages(agent), self.turn, self.turns_left())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; ``info["agent"]`` names the first speaker."""
        question, info = self.env.reset(seed=seed, options=options)
        self.question = self._bounded(question)
        self.history = []
        self.turn = 0
        self._metrics = {}
        self._queue = deque(self._speakers("begin", self.begin()))
        return self.question, {**info, "agent": self.agent_selection}

    def step(self, action: str | Parsed) -> Outcome:
        """Play one utterance of the agent whose turn it is.

        Args:
            action: The utterance, parsed by the agent's grammar; plain text is parsed here.

        Returns:
            Observation, team reward of this step, terminated, truncated and info with ``agent`` (who speaks next),
            ``local_reward``, ``success`` and ``metrics`` so far.

        Raises:
            ContractError: A method of environment, team or grammar returned something else than it must.
            RuntimeError: No episode is running.
        """
        agent = self.agent_selection
        if agent is None:
            raise RuntimeError(f"{type(self).__name__}.step called outside an episode; call reset first")
        parsed = self.grammars[agent].parse(action) if isinstance(action, str) else action
        self._queue.popleft()
        move = self._decide(agent, parsed)
        name = type(self).__name__
        local_reward = to_number(f"{name}.play: local_reward", move.local_reward)
        self.history.extend(move.messages)
        self._metrics.update(to_metrics(f"{name}.play: metrics", move.metrics))
        observation = ""
        reward = 0.0
        terminated = bool(move.ends)
        truncated = False
        success = False
        if move.action is not None and not move.ends:
            outcome = self.env.step(move.action)
            observation, reward, terminated, truncated, info = as_outcome(
                f"{type(self.env).__name__}.step", *outcome
            )
            observation = self._bounded(observation)
            self.turn += 1
            success = info["success"]
            self._metrics.update(info["metrics"])
            self.history.append(self.observed(observation))
        self._queue = (
            deque()
            if terminated or truncated
            else deque((*self._speakers("play", move.speakers), *self._queue))
        )
        if not (self._queue or terminated or truncated):
            raise RuntimeError(
                f"{type(self).__name__}.play named nobody to speak after {agent!r} although the episode of "
                f"{type(self.env.unwrapped).__name__} goes on"
            )
        return (
            observation,
            reward,
            terminated,
            truncated,
            {
                "agent": self.agent_selection,
                "local_reward": local_reward,
                "success": success,
                "metrics": dict(self._metrics),
            },
        )

    def clone(self: Self) -> Self:
        """Copy team and environment state; heavy resources stay shared."""
        twin = copy.copy(self)
        twin.env = self.env.clone() if hasattr(self.env, "clone") else copy.deepcopy(self.env)
        for name, value in vars(self).items():
            if name not in ("env", "grammars"):
                setattr(twin, name, copy.deepcopy(value))
        return twin

    def _bounded(self, text: str) -> str:
        limit = self.max_observation_chars
        if len(text) <= limit:
            return text
        _say_cut(type(self.env.unwrapped).__name__, limit)
        return f"{text[:limit]}\n[{len(text) - limit} more characters are left out]"

    def _decide(self, agent: str, parsed: Parsed) -> Move:
        name = type(self).__name__
        check_returned(
            f"what the grammar of {agent!r} returns",
            parsed,
            Parsed,
            "a Parsed, such as Parsed('valid', action=text)",
        )
        parsed = self.interpret(agent, parsed)
        check_returned(f"what {name}.interpret returns", parsed, Parsed, "a Parsed")
        if parsed.status == "valid":
            move = self.play(agent, parsed)
            method = "play"
        elif self.on_invalid == "end":
            return Move(ends=True)
        else:
            move = self.recover(agent, parsed)
            method = "recover"
        check_returned(f"what {name}.{method} returns", move, Move, "a Move")
        return move

    def _speakers(self, method: str, names: Any) -> tuple[str, ...]:
        """Return who speaks next as a tuple of agents of the team."""
        what = f"{type(self).__name__}.{method}"
        check_returned(f"{what}: the speakers", names, (tuple, list), "a tuple of names, such as ('solver',)")
        unknown = [name for name in names if name not in self.possible_agents]
        if unknown:
            raise ContractError(f"{what} lets {unknown} speak; this team has {list(self.possible_agents)}")
        return tuple(names)


@functools.cache
def _say_cut(name: str, limit: int) -> None:
    """Say once of an environment that its texts are cut."""
    log.warning(
        "%s returns texts of more than %d characters, of which the team sees the beginning; shorten them, or raise "
        "agents.max_observation_chars",
        name,
        limit,
    )
