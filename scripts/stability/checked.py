"""A team whose second agent is called rarely and rewarded differently: the regimes in which per-agent statistics must matter.

Place in the data flow: the environment of ``env=math`` and its exact grader; :mod:`scripts.stability.training` trains the team.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from drmas_pl.envs.math import MathEnv
from drmas_pl.parsing import BoxedGrammar, Parsed
from drmas_pl.team import Move, Team
from drmas_pl.types import Message, MetricInfo

SOLVER = "solver"
BACKUP = "backup"
REJECTED = "<verify>reject</verify>"


class CheckedTeam(Team):
    """Let an exact checker read the solver's attempt, and call the backup when it is wrong.

    Args:
        env: A :class:`~drmas_pl.envs.math.MathEnv`, possibly wrapped.
        price: What a call of the backup costs the backup, at least 0: an offset between the two agents' rewards.
        bonus: What the backup earns for a right answer beside the team's reward, at least 0: a larger scale of its rewards.

    Raises:
        ValueError: The environment cannot check an attempt, or a number is negative.
    """

    possible_agents = (SOLVER, BACKUP)
    grammars = {SOLVER: BoxedGrammar(), BACKUP: BoxedGrammar()}
    highlights = ("first_attempt_correct", "backup_correct")
    metric_info = {
        "first_attempt_correct": MetricInfo(
            "1 if the solver's attempt is right, else 0", "What the solver is worth alone.", "rises"
        ),
        "backup_correct": MetricInfo(
            "1 if the backup's answer is right, else 0; of trajectories that called the backup",
            "What the backup is worth where it is called.",
            "rises",
            conditional=True,
        ),
    }

    def __init__(self, env: gymnasium.Env[str, str], *, price: float = 0.0, bonus: float = 0.0) -> None:
        super().__init__(env, on_invalid="continue")
        if not isinstance(self.unwrapped, MathEnv):
            raise ValueError(
                f"env must be a MathEnv, whose grader checks attempts, got {type(self.unwrapped).__name__}"
            )
        if price < 0 or bonus < 0:
            raise ValueError(f"price and bonus must be at least 0, got {price} and {bonus}")
        self.price, self.bonus = price, bonus

    def begin(self) -> tuple[str, ...]:
        """Let the solver try first."""
        return (SOLVER,)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """End with a right attempt or with the backup's answer."""
        right = self._right(parsed.action)
        if agent == BACKUP:
            return Move(
                action=parsed.action,
                local_reward=self.bonus * right - self.price,
                metrics={"backup_correct": float(right)},
            )
        metrics = {"first_attempt_correct": float(right)}
        if right:
            return Move(action=parsed.action, metrics=metrics)
        return Move(
            (BACKUP,),
            messages=(Message(SOLVER, "solution", parsed.action), Message("env", "critique", REJECTED)),
            metrics=metrics,
        )

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Pass an unusable attempt on like a wrong one; without the backup's answer the task is lost."""
        if agent == BACKUP:
            return Move(ends=True, local_reward=-self.price, metrics={"backup_correct": 0.0})
        return Move(
            (BACKUP,),
            messages=(Message("env", "critique", REJECTED),),
            metrics={"first_attempt_correct": 0.0},
        )

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Show nobody anything: the backup starts afresh, so that all its attempts at a task have one prompt."""
        return ()

    def _right(self, text: str) -> bool:
        env: Any = self.unwrapped
        return bool(env.judge(text).status == "correct")
