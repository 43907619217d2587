"""A team of one: the agent's actions are the environment's.

It is the baseline that every larger team has to beat, and it opens any text environment to training with a single policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import gymnasium

from drmas_pl.agents.single.roles import ActionActor, SearchActor, SolutionActor, TextActor
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.team import MAX_OBSERVATION_CHARS, Move, OnInvalid, Team
from drmas_pl.types import Message

Protocol = Literal["solution", "search", "action", "text"]
ACTOR: Final = "actor"
GRAMMARS: Final[Mapping[Protocol, Grammar]] = {
    "solution": SolutionActor.grammar,
    "search": SearchActor.grammar,
    "action": ActionActor.grammar,
    "text": TextActor.grammar,
}


class SingleTeam(Team):
    r"""Lets one agent act until the environment ends the episode; it sees its own actions and what came back.

    Args:
        env: The environment.
        protocol: What the agent may say: a ``solution`` with a ``\boxed{}`` answer, a ``search`` or ``answer`` action,
            one ``<action>…</action>`` or any ``text``.
        on_invalid: ``end`` gives up at the first unusable utterance; ``continue`` spends an environment turn on it.
        max_observation_chars: Length that questions and observations are cut to, with a note that says so.
        history_length: Number of latest messages shown; None shows all.

    Raises:
        ValueError: An argument is outside its choices, or the protocol has none of the actions that the environment executes.
    """

    possible_agents = (ACTOR,)
    grammars = {ACTOR: GRAMMARS["solution"]}

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        protocol: Protocol = "solution",
        on_invalid: OnInvalid = "end",
        max_observation_chars: int = MAX_OBSERVATION_CHARS,
        history_length: int | None = None,
    ) -> None:
        super().__init__(
            env,
            on_invalid=on_invalid,
            max_observation_chars=max_observation_chars,
            history_length=history_length,
        )
        if protocol not in GRAMMARS:
            raise ValueError(f"protocol must be one of {', '.join(get_args(Protocol))}, got {protocol!r}")
        tags = getattr(self.unwrapped, "action_tags", ())
        if tags and protocol in ("solution", "action"):
            raise ValueError(
                f"{type(self.unwrapped).__name__} executes nothing but {' and '.join(f'<{tag}>' for tag in tags)}, which "
                f"protocol={protocol!r} never says, so that every reward would be 0; use agents=single_search"
            )
        self.grammars = {ACTOR: GRAMMARS[protocol]}  # type: ignore[misc]  # what one agent may say is a setting, not a class

    def begin(self) -> tuple[str, ...]:
        """Let the agent speak; it has no state besides the history."""
        return (ACTOR,)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Pass every utterance on to the environment."""
        return Move(self.begin(), action=parsed.action, messages=(Message(agent, "action", parsed.action),))
