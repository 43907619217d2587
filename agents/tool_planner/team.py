"""A tool agent proposes moves and has them tried out, a planner decides what is played.

Each turn of the environment is one utterance of each: the tool agent's proposal is played on a copy of the environment, both see what it
would lead to, and the planner's action is played for good. The tool agent's local reward is what its proposal would have earned, so that
it learns also where the planner does otherwise; with the rule ``credit=team`` a turn is credited with α · team reward + local reward.

References:
    Zhao et al., 2025 (AT-GRPO), arXiv:2510.11062 (the two roles, and team reward plus local reward).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Protocol, cast, runtime_checkable

import gymnasium

from drmas_pl.agents.tool_planner.roles import Planner, Proposer
from drmas_pl.env import StepResult
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.team import Move, OnInvalid, Team
from drmas_pl.types import Message, MetricInfo

TOOL: Final = "tool"
PLANNER: Final = "planner"


@runtime_checkable
class PreviewEnvironment(Protocol):
    """An environment that can tell what an action would lead to."""

    def preview(self, action: str) -> StepResult:
        """Play ``action`` on a copy."""
        ...


class ToolPlannerTeam(Team):
    """Plays tool → planner → tool … until the environment ends the episode.

    Args:
        env: An environment that can preview actions, such as ``plan_path``, ``sokoban`` and ``sudoku``.
        tool_reward: Weight of what a proposal would have earned in the tool agent's local reward, at least 0.
        illegal_penalty: Taken from the planner's local reward for an action that breaks the rules, at least 0.
        on_invalid: ``end`` gives up at the first unusable utterance. ``continue`` lets the planner decide without a proposal, or spends a
            turn without an action.
        history_length: Number of latest messages shown to each agent; None shows all. A turn makes 4: proposal, check, action, outcome.

    Raises:
        ValueError: An argument is out of its range, or the environment cannot preview actions.
    """

    possible_agents: ClassVar[tuple[str, ...]] = (TOOL, PLANNER)
    grammars: ClassVar[Mapping[str, Grammar]] = {TOOL: Proposer.grammar, PLANNER: Planner.grammar}
    highlights = ("solving_proposal", "followed")
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "solving_proposal": MetricInfo(
            "1 if a proposal would have solved the task, else 0",
            "What the tool agent is worth alone.",
            "rises",
        ),
        "followed": MetricInfo(
            "share of the planner's actions that are the proposal word by word; of trajectories in which it acted on one",
            "Whether the planner decides or repeats.",
            "high where proposals are good, low where they are not",
            conditional=True,
        ),
    }

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        tool_reward: float = 0.5,
        illegal_penalty: float = 0.0,
        on_invalid: OnInvalid = "end",
        history_length: int | None = 4,
    ) -> None:
        super().__init__(env, on_invalid=on_invalid, history_length=history_length)
        if not (tool_reward >= 0 and illegal_penalty >= 0):
            raise ValueError(
                f"tool_reward and illegal_penalty must be at least 0, got {tool_reward} and {illegal_penalty}"
            )
        if not isinstance(self.unwrapped, PreviewEnvironment):
            raise ValueError(
                f"tool agent and planner need an environment with a preview method, got {type(self.unwrapped).__name__}; "
                "choose env=plan_path, env=sokoban or env=sudoku"
            )
        self.tool_reward = tool_reward
        self.illegal_penalty = illegal_penalty
        self.proposal: str | None = None
        self.solving = False
        self.decisions = 0
        self.followed = 0

    def begin(self) -> tuple[str, ...]:
        """Let the tool agent start."""
        self.proposal = None
        self.solving = False
        self.decisions = 0
        self.followed = 0
        return (TOOL,)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Try a proposal out, or play an action."""
        return self._proposed(parsed.action) if agent == TOOL else self._decided(parsed.action)

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Go on without a proposal, or spend a turn without an action."""
        if agent == TOOL:
            self.proposal = None
            return Move((PLANNER,))
        return Move((TOOL,), action="", local_reward=-self.illegal_penalty)

    def _proposed(self, proposal: str) -> Move:
        outcome = self._preview(proposal)
        self.proposal = proposal
        self.solving = self.solving or outcome.success
        return Move(
            (PLANNER,),
            messages=(Message(TOOL, "proposal", proposal), Message("env", "check", outcome.observation)),
            local_reward=self.tool_reward * outcome.reward,
            metrics={"solving_proposal": float(self.solving)},
        )

    def _decided(self, action: str) -> Move:
        metrics = {}
        if self.proposal is not None:
            self.decisions += 1
            self.followed += action.split() == self.proposal.split()
            metrics["followed"] = self.followed / self.decisions
        return Move(
            (TOOL,),
            action=action,
            messages=(Message(PLANNER, "action", action),),
            local_reward=-self.illegal_penalty * self._breaks_rules(action),
            metrics=metrics,
        )

    def _breaks_rules(self, action: str) -> bool:
        """Tell whether the environment would count an action as illegal."""
        if not self.illegal_penalty:
            return False
        counted = self._preview(action).metrics.get("illegal_actions", 0.0)
        return counted > self._metrics.get("illegal_actions", 0.0)

    def _preview(self, action: str) -> StepResult:
        return cast(PreviewEnvironment, self.unwrapped).preview(action)
