"""Values that flow between rollout, estimators and training.

Frozen and slotted: every stage returns new values, only a worker group mutates. This module never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from drmas_pl.parsing import FinishReason, Parsed
from drmas_pl.utils.validation import check_fields

Outcome = Literal["terminated", "truncated", "failed"]
Mode = Literal["sampled", "greedy"]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem instance.

    Attributes:
        id: Unique within its data set; part of every derived seed.
        question: What the team is asked, as plain text.
        reference: Right answer, or several alternatives of which one suffices; a single text may be given as it is.
        data_source: Name of the collection the task came from; evaluation averages per source.
        metadata: Anything else an environment may need.

    Raises:
        TypeError: The id, question or reference is no text.
    """

    id: str
    question: str
    reference: tuple[str, ...] = ()
    data_source: str = "unknown"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("id", "question"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"Task.{name} must be a text, got {value!r}")
        reference: Any = self.reference
        if isinstance(reference, str):
            reference = (reference,)
        if not isinstance(reference, (tuple, list)) or not all(isinstance(item, str) for item in reference):
            raise TypeError(f"Task.reference must be a text or several texts, got {self.reference!r}")
        object.__setattr__(self, "reference", tuple(reference))


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """What a metric of an environment or a team is; `docs/metrics.md` is made of such descriptions.

    Attributes:
        formula: How one trajectory's number comes about, with its unit.
        meaning: What the average over trajectories tells.
        healthy: Range or course of the average in a run that goes well; empty where there is none.
        conditional: The number exists for some trajectories alone, and the average is over these. Otherwise a trajectory without it counts
            as 0, as one does that ended before it could be scored.
    """

    formula: str
    meaning: str
    healthy: str = ""
    conditional: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One thing that happened in an episode, as teammates may see it.

    Attributes:
        author: Agent name, or ``env`` for the environment.
        kind: What it is, for example ``solution``, ``verdict``, ``query``, ``information``; templates format by kind.
        text: Its content.
    """

    author: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Observation:
    """What one agent is shown when it is its turn.

    Attributes:
        question: The first observation of the episode.
        history: Messages visible to this agent, oldest first.
        turn: Index of the environment turn, from 0.
        turns_left: Environment turns that remain including this one; None when unlimited.
    """

    question: str
    history: tuple[Message, ...] = ()
    turn: int = 0
    turns_left: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one response.

    Attributes:
        temperature: Divides the logits; 0 means greedy.
        top_p: Nucleus mass in (0, 1]; 1 keeps every token.
        top_k: Number of most likely tokens kept; -1 keeps all.
        max_new_tokens: Largest number of sampled tokens, at least 1.
        stop: Texts that end a response; they stay part of the sampled ids.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError(f"stop must be a sequence of non-empty texts, got {self.stop!r}")
        object.__setattr__(self, "stop", tuple(self.stop))
        check_fields(self)
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}; use 0 for greedy decoding")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}; use 1 to keep every token")
        if self.top_k != -1 and self.top_k < 1:
            raise ValueError(f"top_k must be -1 (off) or at least 1, got {self.top_k}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")

    @property
    def truncates_distribution(self) -> bool:
        """Whether tokens are drawn from a renormalised subset, so that log-probs no longer describe the sampler."""
        return self.temperature == 0 or self.top_p < 1 or self.top_k != -1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to be continued once.

    Attributes:
        prompt_ids: Token ids of the prompt, at least one.
        sampling: How to sample.
        seed: Seed of this sample alone; see :func:`drmas_pl.seeding.derive_seed`.
        order: Sort key that fixes a batch's row order, whatever order requests arrive in.
        sampled_ids: Beginning of the response, sampled before; the engine continues behind it and returns only what it adds. Asked only of
            engines that can be suspended.
        iteration: Training iteration that it is for; of requests that wait, those of earlier ones come first.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    order: tuple[Any, ...] = ()
    sampled_ids: tuple[int, ...] = ()
    iteration: int = 0

    @property
    def place(self) -> tuple[Any, ...]:
        """Sort key among requests that wait: iteration, then order."""
        return self.iteration, self.order


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled for one request.

    Attributes:
        token_ids: Sampled ids, the end token included when the model produced it.
        logprobs: Log-probability of each sampled id at the sampling temperature, before any top-k/top-p renormalisation.
        finish_reason: ``stop`` (end token or stop text), ``length`` or ``abort``.
        weights_version: Version of the weights that sampled it, or its first token.
        later_versions: Position and version of the first token of each later version, where new weights came before its end.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weights_version: int
    later_versions: tuple[tuple[int, int], ...] = ()

    def continued(self, rest: Completion) -> Completion:
        """Return this beginning of a response together with what was sampled behind it.

        >>> start, rest = Completion((5,), (-0.5,), "abort", 2), Completion((6, 7), (-1.0, -2.0), "stop", 3)
        >>> start.continued(rest)
        Completion(token_ids=(5, 6, 7), logprobs=(-0.5, -1.0, -2.0), finish_reason='stop', weights_version=2, later_versions=((1, 3),))
        """
        if not self.token_ids:
            return rest
        at = len(self.token_ids)
        latest = self.later_versions[-1][1] if self.later_versions else self.weights_version
        new = () if not rest.token_ids or rest.weights_version == latest else ((at, rest.weights_version),)
        later = (
            *self.later_versions,
            *new,
            *((at + place, version) for place, version in rest.later_versions),
        )
        return Completion(
            (*self.token_ids, *rest.token_ids),
            (*self.logprobs, *rest.logprobs),
            rest.finish_reason,
            self.weights_version,
            later,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of one agent.

    Attributes:
        agent: Name of the agent that spoke.
        index: Position among all turns of the trajectory, from 0.
        agent_index: Position among this agent's turns of the trajectory, from 0.
        prompt_ids: Exactly the ids the engine was given.
        response_ids: Exactly the ids the engine sampled.
        logprobs: Engine log-probability of each sampled id.
        finish_reason: Why sampling ended.
        text: Decoded response, for people and parsers only.
        parsed: What the agent's grammar made of the text.
        weights_version: Version of the weights that sampled it, or its first token.
        prompt_truncated: Whether history was dropped to fit the prompt budget.
        prompt_hash: Hash of the prompt ids; equal prompts form anchor-state groups.
        local_reward: Reward of this turn alone, besides the team's.
        reward: Team reward that the environment paid on this turn; a trajectory's reward is the sum. What it paid for a move of several
            agents stands on the last of their turns.
        own_reward: Reward that the environment paid this turn's agent alone, from this turn until the agent's next one.
        step: Environment steps made before this turn.
        move: Position of the move that the turn is part of among all moves of the trajectory, from 0; turns of agents that moved at once
            share it. None in old recordings, whose turns were each a move of their own.
        moved_with: Agents that moved at the same time, this one left out.
        observation: What the environment said last before this turn; the question at first.
        advantage: What the turn was trained with, the mean of its tokens' if these differ; None for turns that were not trained.
        prompt: Text of the prompt, special tokens included; None where it was not asked for.
        candidate: Number among the candidates that were sampled for its prompt, from 0; None where it was sampled alone.
        parent: In a whole tree, place of the candidate before it among ``Trajectory.candidates``; None at the root and elsewhere.
        later_versions: Position and version of the first token of each later version of the weights, where new ones came before its end.
    """

    agent: str
    index: int
    agent_index: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    text: str
    parsed: Parsed
    weights_version: int
    prompt_truncated: bool = False
    prompt_hash: int = 0
    local_reward: float = 0.0
    reward: float = 0.0
    own_reward: float = 0.0
    step: int = 0
    move: int | None = None
    moved_with: tuple[str, ...] = ()
    observation: str = ""
    advantage: float | None = None
    prompt: str | None = None
    candidate: int | None = None
    parent: int | None = None
    later_versions: tuple[tuple[int, int], ...] = ()

    @property
    def token_versions(self) -> tuple[int, ...]:
        """Version of the weights that sampled each token.

        Its last entry is the newest version; a turn without tokens has none.
        """
        found = [self.weights_version] * len(self.response_ids)
        for place, version in self.later_versions:
            found[place:] = [version] * (len(found) - place)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The turns of one team on one task.

    Attributes:
        task: What was played.
        sample: Index of this attempt among the samples of the task.
        turns: What was said, in order. Under tree sampling these are the chosen candidates.
        reward: Team reward; 0 for failed trajectories, which never enter statistics.
        outcome: ``terminated`` by the rules, ``truncated`` by a limit, or ``failed`` by a fault.
        success: Whether the environment counts the task as solved; a time-out never is.
        metrics: Further numbers of environment and team.
        cause: For failed trajectories, what went wrong.
        mode: Whether utterances were ``sampled`` or, at temperature 0, ``greedy``; None if unknown.
        phase: What it was played for: ``train``, ``validation`` or ``test``; empty if unknown.
        iteration: Training iteration that learnt from it, counted from 1, or after which it was played for evaluation; None if unknown.
        rewards: What the environment paid single agents, by name and beside the team reward; empty where it pays the team alone.
        candidates: Under tree sampling every candidate, the chosen ones too, each with what it was paid on its own copy of team and
            environment; those of one prompt share ``index`` and ``parent``. In a whole tree ``reward`` and ``own_reward`` of a candidate
            are its value: the mean over its children, and at the end of an episode what the trajectory earned.
    """

    task: Task
    sample: int
    turns: tuple[Turn, ...]
    reward: float
    outcome: Outcome
    success: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    cause: str | None = None
    mode: Mode | None = None
    phase: str = ""
    iteration: int | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    candidates: tuple[Turn, ...] = ()

    @property
    def sampled(self) -> tuple[Turn, ...]:
        """Every response that was sampled: all candidates, and the turns that were sampled alone."""
        if not self.candidates:
            return self.turns
        alone = (turn for turn in self.turns if turn.candidate is None)
        return tuple(sorted((*alone, *self.candidates), key=lambda turn: (turn.index, turn.candidate or 0)))

    @property
    def failed(self) -> bool:
        """Whether the trajectory must stay out of every statistic."""
        return self.outcome == "failed"

    def calls(self, agent: str) -> int:
        """Count the turns of one agent."""
        return sum(turn.agent == agent for turn in self.turns)
