"""The team: whose turn it is, who sees what, and which utterance becomes the environment's action.

A team is a Gymnasium wrapper around a :class:`~drmas_pl.env.TextEnv`, so one rollout loop serves every topology. Authors write
``begin`` (who speaks first) and ``play`` (what follows from an utterance); where several agents move at once, ``play_jointly`` says what
follows from all of their utterances. Words follow PettingZoo: ``possible_agents``, ``agent_selection``, ``observe``.
"""

from __future__ import annotations

import copy
import functools
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args

import gymnasium

from drmas_pl.env import Outcome, TextEnv, as_outcome
from drmas_pl.errors import ContractError
from drmas_pl.integrations.gymnasium_env import as_text_env
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.types import Message, MetricInfo, Observation, SamplingParams, Turn
from drmas_pl.utils.validation import check_returned, shown, to_metrics, to_number

Self = TypeVar("Self", bound="Team")
OnInvalid = Literal["end", "continue", "execute"]
# one agent, or a set of agents that see the same and move at once
Step = str | AbstractSet[str]
Utterance = str | Parsed
# one utterance, or those of agents that move at once by name
Utterances = Utterance | Mapping[str, Utterance]
log = logging.getLogger(__name__)
# a good deal more than any prompt holds, and less than a quarter of a second to encode
MAX_OBSERVATION_CHARS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Move:
    """What a team makes of one utterance, or of several that were made at once.

    Attributes:
        speakers: Who speaks next, step by step: a name, or a set of names whose agents see the same and move at once. Ignored when the
            episode is over afterwards.
        action: Text for the environment, several texts that it is given one after the other until the episode ends, or None when the
            environment is not stepped.
        messages: What is added to the history before the environment answers.
        ends: The team gives up here: the episode terminates without success.
        local_reward: Reward of the utterance itself, given to its author alone. After several utterances a number goes to each of
            their authors, and a mapping holds numbers by name.
        metrics: Numbers to be averaged over trajectories; one that has none of a name counts as 0 unless ``metric_info`` says otherwise.
    """

    speakers: tuple[Step, ...] = ()
    action: str | tuple[str, ...] | None = None
    messages: tuple[Message, ...] = ()
    ends: bool = False
    local_reward: float | Mapping[str, float] = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """What one agent is asked now.

    Attributes:
        agent: Its name.
        observation: What it sees.
        stop: Texts that end its answer, besides those of its sampling.
        max_new_tokens: Largest number of tokens, where it is less than the agent's own.
        seed_key: What the seed of the sample is derived from within the trajectory; empty takes the agent and the turn's position.
    """

    agent: str
    observation: Observation
    stop: tuple[str, ...] = ()
    max_new_tokens: int | None = None
    seed_key: tuple[int | str, ...] = ()

    def sampling(self, own: SamplingParams) -> SamplingParams:
        """Return how the agent samples here, given how it does otherwise."""
        limit = min(self.max_new_tokens or own.max_new_tokens, own.max_new_tokens)
        if not self.stop and limit == own.max_new_tokens:
            return own
        return replace(own, stop=(*own.stop, *self.stop), max_new_tokens=limit)


class Team(gymnasium.Wrapper[str, Utterances, str, str]):
    """Turns a text environment into a game of several named agents.

    Subclasses set ``possible_agents`` and ``grammars`` and implement :meth:`begin` and :meth:`play`; ``metric_info`` describes the
    numbers in ``Move.metrics`` by name, and ``highlights`` names metrics, of team or environment, that deserve a
    line where a run sums itself up.

    Args:
        env: The environment; one that is no text environment is played as a :class:`~drmas_pl.integrations.gymnasium_env.GymnasiumTextEnv`.
        on_invalid: What an utterance that is not valid leads to: ``end`` the episode without reward, ``continue`` with
            whatever :meth:`recover` says, or ``execute`` the action or verdict that its tags hold, and continue where they hold none. Of
            utterances made at once, a single one ends the episode, or those that are not valid are left out.
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
        if on_invalid not in get_args(OnInvalid):
            raise ValueError(
                f"on_invalid must be one of {', '.join(get_args(OnInvalid))}, got {on_invalid!r}"
            )
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
        self._queue: deque[tuple[str, ...]] = deque()
        self._told: dict[str, Parsed] = {}
        self._metrics: dict[str, float] = {}

    @abstractmethod
    def begin(self) -> tuple[Step, ...]:
        """Reset the team's own state and return who speaks first, step by step as in :attr:`Move.speakers`."""

    @abstractmethod
    def play(self, agent: str, parsed: Parsed) -> Move:
        """Decide what follows from a *valid* utterance of ``agent``."""

    def play_jointly(self, utterances: Mapping[str, Parsed]) -> Move:
        """Decide what follows from the *valid* utterances of agents that moved at once.

        By default each is played, in the order of ``possible_agents``, and what they lead to is joined: messages and actions one behind the
        other, every step of speakers once.

        Args:
            utterances: By agent, in the order of ``possible_agents``; at least one. Under ``on_invalid='continue'`` agents whose utterance
                was not valid are not among them.
        """
        return _joined(
            {agent: self._checked("play", self.play(agent, parsed)) for agent, parsed in utterances.items()}
        )

    def compare(self, candidates: Mapping[str, Sequence[Parsed]]) -> Mapping[str, Sequence[float]]:
        """Return local rewards of candidates that only all of them together can tell, beside what each was paid alone.

        Asked under tree sampling, on a copy of the team as it was before the move. By default there are none.

        Args:
            candidates: What was sampled for one move, by agent, whether valid or not.

        Returns:
            Rewards by agent, one for each of its candidates; agents may be left out.
        """
        return {}

    def interpret(self, agent: str, parsed: Parsed) -> Parsed:
        """Replace what the grammar said before the team acts on it, for example a missing verdict by a rejection."""
        return parsed

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Decide what follows from an utterance that is not valid, under ``on_invalid='continue'``.

        By default the environment is stepped with an empty action, which costs a turn, and the first speakers go again. When none of
        several utterances made at once is valid, the first one decides.
        """
        return Move(self.begin(), action="")

    def next_speakers(self, move: Move) -> tuple[Step, ...]:
        """Return who speaks next once a move has happened; by default whom it names.

        A team whose environment decides whose turn it is overrides this.
        """
        return move.speakers

    def observed(self, observation: str) -> Message:
        """Turn an observation of the environment into a message of the history."""
        return Message("env", "information", observation)

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return the messages that ``agent`` may see, oldest first; by default the latest ``history_length``."""
        return tuple(self.history if self.history_length is None else self.history[-self.history_length :])

    def use_agents(self, agents: Mapping[str, Any]) -> None:
        """Learn which agents play, before they do; by default a team need not know."""

    def calls(self) -> tuple[Call, ...]:
        """Return what is asked now and answered at the same time, by default every agent that moves."""
        return tuple(Call(name, self.observe(name)) for name in self.agents_selection)

    def hear(self, turns: Sequence[Turn]) -> Outcome:
        """Play what was said to all of :meth:`calls`, in their order; returns what :meth:`step` returns."""
        return self.step(turns[0].parsed if len(turns) == 1 else {turn.agent: turn.parsed for turn in turns})

    @property
    def agent_selection(self) -> str | None:
        """Name of the agent whose turn it is, the first of those that move at once; None when the episode is over."""
        return next(iter(self.agents_selection), None)

    @property
    def agents_selection(self) -> tuple[str, ...]:
        """Names of all agents that move now, in the order of ``possible_agents``; empty when the episode is over."""
        return tuple(name for name in self._queue[0] if name not in self._told) if self._queue else ()

    @property
    def unwrapped(self) -> TextEnv:  # type: ignore[override]
        """The innermost environment, in a mixture the one that plays the task."""
        env = self.env.unwrapped
        assert isinstance(env, TextEnv)
        return env.playing

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
        """Start an episode; ``info["agent"]`` names the first speaker, ``info["agents"]`` all that speak first."""
        question, info = self.env.reset(seed=seed, options=options)
        self.question = self._bounded(question)
        self.history = []
        self.turn = 0
        self._metrics = {}
        self._told = {}
        self._queue = deque(self._steps("begin", self.begin()))
        return self.question, {**info, "agent": self.agent_selection, "agents": self.agents_selection}

    def step(self, action: Utterances) -> Outcome:
        """Play the utterances of the agents that move now.

        A single utterance is that of ``agent_selection``. Where several agents move at once, the team is told nothing before it has the
        utterances of all: until then nothing happens and nobody sees anything new.

        Args:
            action: One utterance, parsed by the agent's grammar, or those of all agents in ``agents_selection`` by name; plain text is
                parsed here.

        Returns:
            Observation, team reward of this step, terminated, truncated and info with ``agent`` and ``agents`` (who speaks next),
            ``local_rewards`` of the utterances by agent and ``local_reward``, their sum, ``rewards`` that the environment paid single
            agents, ``success`` and ``metrics`` so far.

        Raises:
            ContractError: A method of environment, team or grammar returned something else than it must.
            RuntimeError: No episode is running.
            ValueError: A mapping holds other agents than those that move now.
        """
        if not self._queue:
            raise RuntimeError(f"{type(self).__name__}.step called outside an episode; call reset first")
        self._told |= self._read(action)
        if self.agents_selection:
            return "", 0.0, False, False, self._info({}, {}, success=False)
        agents = self._queue.popleft()
        told = {agent: self._told[agent] for agent in agents}
        self._told = {}
        return self._apply(
            self._decide_jointly(told) if len(told) > 1 else self._decide(*told.popitem()), agents
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

    def _read(self, action: Utterances) -> dict[str, Parsed]:
        """Return parsed utterances by agent."""
        waiting = self.agents_selection
        given = action if isinstance(action, Mapping) else {waiting[0]: action}
        if isinstance(action, Mapping) and set(action) != set(waiting):
            raise ValueError(
                f"{type(self).__name__}.step needs the utterance of each of {list(waiting)}, who move now, got those of {list(action)}"
            )
        return {
            agent: self.grammars[agent].parse(said) if isinstance(said, str) else said
            for agent, said in given.items()
        }

    def _apply(self, move: Move, agents: tuple[str, ...]) -> Outcome:
        """Let a move of ``agents`` happen: history, environment, who speaks next."""
        name = type(self).__name__
        local_rewards = self._local_rewards(move, agents)
        self.history.extend(move.messages)
        self._metrics.update(to_metrics(f"{name}.play: metrics", move.metrics))
        observations = []
        reward = 0.0
        rewards: dict[str, float] = {}
        terminated = bool(move.ends)
        truncated = success = False
        for action in () if move.ends else _actions(move):
            observation, paid, terminated, truncated, info = self._act(action)
            observations.append(observation)
            reward += paid
            for agent, own in info["rewards"].items():
                rewards[agent] = rewards.get(agent, 0.0) + own
            success = info["success"]
            if terminated or truncated:
                break
        over = terminated or truncated
        self._queue = (
            deque() if over else deque((*self._steps("play", self.next_speakers(move)), *self._queue))
        )
        if not (self._queue or over):
            raise RuntimeError(
                f"{name}.play named nobody to speak after {' and '.join(map(repr, agents))} although the episode of "
                f"{type(self.env.unwrapped).__name__} goes on"
            )
        info = self._info(local_rewards, rewards, success=success)
        return "\n".join(observations), reward, terminated, truncated, info

    def _act(self, action: str) -> Outcome:
        """Step the environment."""
        what = f"{type(self.env).__name__}.step"
        observation, reward, terminated, truncated, info = as_outcome(what, *self.env.step(action))
        strangers = [name for name in info["rewards"] if name not in self.possible_agents]
        if strangers:
            raise ContractError(f"{what} rewards {strangers}; this team has {list(self.possible_agents)}")
        observation = self._bounded(observation)
        self.turn += 1
        self._metrics.update(info["metrics"])
        self.history.append(self.observed(observation))
        return observation, reward, terminated, truncated, info

    def _info(
        self, local_rewards: Mapping[str, float], rewards: Mapping[str, float], *, success: bool
    ) -> dict[str, Any]:
        return {
            "agent": self.agent_selection,
            "agents": self.agents_selection,
            "local_reward": sum(local_rewards.values()),
            "local_rewards": dict(local_rewards),
            "rewards": dict(rewards),
            "success": success,
            "metrics": dict(self._metrics),
        }

    def _local_rewards(self, move: Move, agents: tuple[str, ...]) -> dict[str, float]:
        """Return the local reward of each of the agents that moved."""
        what = f"{type(self).__name__}.play: local_reward"
        if not isinstance(move.local_reward, Mapping):
            return dict.fromkeys(agents, to_number(what, move.local_reward))
        found = to_metrics(what, move.local_reward)
        others = [name for name in found if name not in agents]
        if others:
            raise ContractError(f"{what} is for utterances of {list(agents)}, got one for {others}")
        return {agent: found.get(agent, 0.0) for agent in agents}

    def _decide(self, agent: str, parsed: Parsed) -> Move:
        parsed = self._interpreted(agent, parsed)
        if parsed.status == "valid":
            return self._checked("play", self.play(agent, parsed))
        if self.on_invalid == "end":
            return Move(ends=True)
        return self._checked("recover", self.recover(agent, parsed))

    def _decide_jointly(self, told: Mapping[str, Parsed]) -> Move:
        """Decide about utterances made at once."""
        read = {agent: self._interpreted(agent, parsed) for agent, parsed in told.items()}
        valid = {agent: parsed for agent, parsed in read.items() if parsed.status == "valid"}
        if len(valid) < len(read) and self.on_invalid == "end":
            return Move(ends=True)
        if valid:
            return self._checked("play_jointly", self.play_jointly(valid))
        return self._checked("recover", self.recover(*next(iter(read.items()))))

    def _interpreted(self, agent: str, parsed: Parsed) -> Parsed:
        check_returned(
            f"what the grammar of {agent!r} returns",
            parsed,
            Parsed,
            "a Parsed, such as Parsed('valid', action=text)",
        )
        parsed = self.interpret(agent, parsed)
        check_returned(f"what {type(self).__name__}.interpret returns", parsed, Parsed, "a Parsed")
        if self.on_invalid == "execute" and parsed.tagged and not parsed.valid:
            # the turn itself stays invalid, so that its penalty is paid
            action = parsed.action or parsed.tagged
            return replace(parsed, status="valid", action=action, verdict=parsed.tagged)
        return parsed

    def _checked(self, method: str, move: Move) -> Move:
        check_returned(f"what {type(self).__name__}.{method} returns", move, Move, "a Move")
        return move

    def _steps(self, method: str, steps: Any) -> tuple[tuple[str, ...], ...]:
        """Return who speaks next, each step as a tuple of agents in the order of ``possible_agents``."""
        what = f"{type(self).__name__}.{method}"
        check_returned(f"{what}: the speakers", steps, (tuple, list), "a tuple of names, such as ('solver',)")
        return tuple(self._agents_of(what, step) for step in steps)

    def _agents_of(self, what: str, step: Any) -> tuple[str, ...]:
        names = {step} if isinstance(step, str) else step
        if not isinstance(names, AbstractSet) or not names:
            raise ContractError(
                f"{what}: a step of the speakers must be a name, or a set of names that move at once, got {shown(step)}"
            )
        unknown = sorted(map(str, names - set(self.possible_agents)))
        if unknown:
            raise ContractError(f"{what} lets {unknown} speak; this team has {list(self.possible_agents)}")
        return tuple(name for name in self.possible_agents if name in names)


def _actions(move: Move) -> tuple[str, ...]:
    """Return what the environment is given, one after the other."""
    if move.action is None:
        return ()
    return (move.action,) if isinstance(move.action, str) else tuple(move.action)


def _joined(moves: Mapping[str, Move]) -> Move:
    """Join what several utterances lead to, in their order."""
    local_rewards: dict[str, float] = {}
    for agent, move in moves.items():
        own = move.local_reward if isinstance(move.local_reward, Mapping) else {agent: move.local_reward}
        local_rewards |= own
    steps: list[Step] = []
    for step in (step for move in moves.values() for step in move.speakers):
        if step not in steps:
            steps.append(step)
    actions = tuple(action for move in moves.values() for action in _actions(move))
    return Move(
        tuple(steps),
        action=actions or None,
        messages=tuple(message for move in moves.values() for message in move.messages),
        ends=any(move.ends for move in moves.values()),
        local_reward=local_rewards,
        metrics={name: value for move in moves.values() for name, value in move.metrics.items()},
    )


@functools.cache
def _say_cut(name: str, limit: int) -> None:
    """Say once of an environment that its texts are cut."""
    log.warning(
        "%s returns texts of more than %d characters, of which the team sees the beginning; shorten them, or raise "
        "agents.max_observation_chars",
        name,
        limit,
    )
