"""Solver and verifier in a loop: propose, review, propose again.

The solver speaks first. Each of its solutions but the last is reviewed; an approved solution, or else the last one, becomes the
environment's single action. The team is rewarded for that action alone, so metrics watch the division of labour: how good the first attempt
is, and whether the verifier tells right from wrong first attempts.

References:
    Dr. MAS, arXiv:2602.08847 (the loop and its two rounds).
"""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol, runtime_checkable

import gymnasium

from drmas_pl.agents.loop.roles import APPROVE, Solver, Verifier
from drmas_pl.parsing import Parsed
from drmas_pl.rewards.base import Verdict
from drmas_pl.team import MAX_OBSERVATION_CHARS, Move, OnInvalid, Team, Utterances
from drmas_pl.types import Message, MetricInfo

OnMissingVerdict = Literal["reject", "approve"]
SOLVER = "solver"
VERIFIER = "verifier"
ROUNDS: Final = {
    "rounds": MetricInfo(
        "number of solver turns; 0 if the first one was not valid",
        "How often the team starts over.",
        "between 1 and max_rounds",
    )
}
JUDGED: Final = {
    "first_attempt_correct": MetricInfo(
        "1 if the solver's first attempt is right, else 0; 0 also if it was not valid",
        "What the solver is worth alone.",
        "rises; below success where the verifier earns its place",
    ),
    "verifier_approves_correct": MetricInfo(
        "1 if the first review approves, 0 if it rejects; of right first attempts that were reviewed",
        "Whether the verifier lets right solutions pass.",
        "towards 1",
        conditional=True,
    ),
    "verifier_rejects_wrong": MetricInfo(
        "1 if the first review rejects, 0 if it approves; of wrong first attempts that were reviewed",
        "Whether the verifier sees mistakes; 0 for one that approves everything.",
        "towards 1",
        conditional=True,
    ),
}


@runtime_checkable
class Judge(Protocol):
    """An environment that can grade a solution without ending the episode."""

    def judge(self, text: str) -> Verdict:
        """Grade ``text`` against the current task."""
        ...


class LoopTeam(Team):
    """Plays solver → verifier → solver … on a task with one final action.

    In an environment with a ``judge`` metrics tell how good first attempts are. Once the first attempt was reviewed, there is either
    ``verifier_approves_correct`` or ``verifier_rejects_wrong``, each only where it has a meaning, so that the mean of the two averages
    is the verifier's balanced accuracy.

    Args:
        env: The environment; its action is a solution text.
        max_rounds: Largest number of solver turns, at least 1.
        on_missing_verdict: What a review without any verdict counts as, whatever ``on_invalid`` says.
        on_invalid: ``end`` ends the episode without reward. ``continue`` spends a solver's round without a solution, and lets a
            verifier's turn count like a missing verdict.
        max_observation_chars: Length that questions and observations are cut to, with a note that says so.
        call_cost: Team reward given up per utterance, at least 0; it keeps the second round from becoming a habit.
        verdict_reward: Local reward of the verifier for a verdict that agrees with the judge, at least 0; needs an environment with
            a ``judge``.

    Raises:
        ValueError: An argument is out of its range, or ``verdict_reward`` is set in an environment that cannot judge.
    """

    possible_agents = (SOLVER, VERIFIER)
    grammars = {SOLVER: Solver.grammar, VERIFIER: Verifier.grammar}
    highlights = ("first_attempt_correct", "verifier_approves_correct", "verifier_rejects_wrong")
    metric_info = ROUNDS | JUDGED

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        max_rounds: int = 2,
        on_missing_verdict: OnMissingVerdict = "reject",
        on_invalid: OnInvalid = "end",
        max_observation_chars: int = MAX_OBSERVATION_CHARS,
        call_cost: float = 0.0,
        verdict_reward: float = 0.0,
    ) -> None:
        super().__init__(env, on_invalid=on_invalid, max_observation_chars=max_observation_chars)
        if max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1 solver turn, got {max_rounds}")
        if on_missing_verdict not in ("reject", "approve"):
            raise ValueError(f"on_missing_verdict must be 'reject' or 'approve', got {on_missing_verdict!r}")
        if call_cost < 0 or verdict_reward < 0:
            raise ValueError(
                f"call_cost and verdict_reward must be at least 0, got {call_cost} and {verdict_reward}"
            )
        if verdict_reward and not isinstance(self.unwrapped, Judge):
            raise ValueError(
                f"verdict_reward needs an environment with a judge method, got {type(self.unwrapped).__name__}; set verdict_reward=0"
            )
        self.max_rounds = max_rounds
        self.on_missing_verdict: OnMissingVerdict = on_missing_verdict
        self.call_cost = call_cost
        self.verdict_reward = verdict_reward
        self.round = 0
        self.solution = ""
        if not isinstance(self.unwrapped, Judge):
            self.metric_info = ROUNDS  # type: ignore[misc]  # what can be told of a first attempt depends on the environment

    def begin(self) -> tuple[str, ...]:
        """Let the solver start from nothing."""
        self.round = 0
        self.solution = ""
        return (SOLVER,)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Pass a solution on to review or to the environment; act on a verdict."""
        if agent == VERIFIER:
            return self._reviewed(parsed.verdict == APPROVE, parsed.action)
        self.round += 1
        self.solution = parsed.action
        return self._proposed((Message(SOLVER, "solution", parsed.action),))

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Spend the round of a solver without a solution; take an unusable review for one without a verdict."""
        if agent == VERIFIER:
            return self._reviewed(self.on_missing_verdict == APPROVE, parsed.action)
        self.round += 1
        self.solution = ""
        return self._proposed(())

    def step(self, action: Utterances) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one utterance; the reward is the environment's minus the cost of the call."""
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward - self.call_cost, terminated, truncated, info

    def _decide(self, agent: str, parsed: Parsed) -> Move:
        """Give silence its own rule: a review without a verdict is never an invalid turn that ends the episode."""
        if agent == VERIFIER and parsed.status == "no_verdict":
            return self.recover(agent, parsed)
        return super()._decide(agent, parsed)

    def _proposed(self, messages: tuple[Message, ...]) -> Move:
        """Send the last solution to the environment, any other one to review; without a solution there is nothing to review."""
        metrics = {"rounds": float(self.round)}
        right = self._judge() if self.round == 1 else None
        if right is not None:
            metrics["first_attempt_correct"] = float(right)
        if self.round >= self.max_rounds:
            return Move(action=self.solution, messages=messages, metrics=metrics)
        return Move((VERIFIER if messages else SOLVER,), messages=messages, metrics=metrics)

    def _reviewed(self, approves: bool, text: str) -> Move:
        """End with the approved solution, or ask for another one."""
        right = self._judge() if self.round == 1 or self.verdict_reward else None
        metrics = {}
        local_reward = 0.0
        if right is not None:
            local_reward = self.verdict_reward * (approves == right)
            if self.round == 1:
                metrics["verifier_approves_correct" if right else "verifier_rejects_wrong"] = float(
                    approves == right
                )
        return Move(
            () if approves else (SOLVER,),
            action=self.solution if approves else None,
            messages=(Message(VERIFIER, "critique", text),),
            local_reward=local_reward,
            metrics=metrics,
        )

    def _judge(self) -> bool | None:
        """Tell whether the latest solution is right; None where the environment cannot say."""
        env = self.unwrapped
        if not isinstance(env, Judge):
            return None
        return env.judge(self.solution).status == "correct"
