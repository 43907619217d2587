"""A verifier decides each turn whether to search once more or to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import gymnasium

from drmas_pl.agents.hierarchy.roles import Answerer, Searcher, Verifier
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.team import MAX_OBSERVATION_CHARS, Move, OnInvalid, Team
from drmas_pl.types import Message, MetricInfo

LastTurn = Literal["fail", "answer"]
OnMissingVerdict = Literal["reject", "approve"]


class HierarchyTeam(Team):
    """Plays ``verifier → search`` until the verifier has seen enough, then ``verifier → answer``.

    Each environment turn starts with the verifier. Its *no* calls the search agent, whose query is executed and shown to all; its
    *yes* calls the answer agent, whose answer ends the episode.

    Args:
        env: An environment that understands ``<search>`` and ``<answer>`` actions, such as :class:`SearchEnv`.
        last_turn: What a *no* on the last turn leads to: ``fail`` ends the episode unanswered, ``answer`` has it answered anyway.
        on_missing_verdict: What an unusable verdict counts as under ``on_invalid='continue'``: ``reject`` is a *no*.
        on_invalid: ``end`` gives up at the first unusable utterance; ``continue`` lets an unusable query or answer cost a turn;
            ``execute`` does what its tags say if it has any.
        max_observation_chars: Length that questions and observations are cut to, with a note that says so.
        history_length: Number of latest messages shown to each agent; None shows all.
        show_verdicts: Show searcher and answerer all that the verifier has just said, its thoughts included, where their template has a
            place for it.

    Raises:
        ValueError: An argument is outside its choices.
    """

    possible_agents: ClassVar[tuple[str, ...]] = ("verifier", "search", "answer")
    grammars: ClassVar[Mapping[str, Grammar]] = {
        "verifier": Verifier.grammar,
        "search": Searcher.grammar,
        "answer": Answerer.grammar,
    }
    metric_info: ClassVar[Mapping[str, MetricInfo]] = {
        "gave_up": MetricInfo(
            "1 if the verifier said no on the last turn and last_turn=fail ended the episode, else 0",
            "Questions left unanswered for want of turns.",
            "towards 0",
        )
    }

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        last_turn: LastTurn = "fail",
        on_missing_verdict: OnMissingVerdict = "reject",
        on_invalid: OnInvalid = "end",
        max_observation_chars: int = MAX_OBSERVATION_CHARS,
        history_length: int | None = None,
        show_verdicts: bool = False,
    ) -> None:
        super().__init__(
            env,
            on_invalid=on_invalid,
            max_observation_chars=max_observation_chars,
            history_length=history_length,
        )
        if last_turn not in ("fail", "answer"):
            raise ValueError(f"last_turn must be 'fail' or 'answer', got {last_turn!r}")
        if on_missing_verdict not in ("reject", "approve"):
            raise ValueError(f"on_missing_verdict must be 'reject' or 'approve', got {on_missing_verdict!r}")
        self.last_turn = last_turn
        self.on_missing_verdict = on_missing_verdict
        self.show_verdicts = show_verdicts
        self.verdict: tuple[Message, ...] = ()

    def begin(self) -> tuple[str, ...]:
        """The verifier opens every turn, the first included."""
        self.verdict = ()
        return ("verifier",)

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return what was searched and found, and what the verifier has said about it in this turn."""
        return (*super().visible_messages(agent), *self.verdict)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Follow a verdict, or send a query or an answer to the environment."""
        if agent == "verifier":
            if self.show_verdicts:
                self.verdict = (Message(agent, "verdict", parsed.action),)
            return self._judged(enough=parsed.verdict == "yes")
        messages = (Message(agent, "query", parsed.action),) if agent == "search" else ()
        return Move(self.begin(), action=f"<{agent}>{parsed.action}</{agent}>", messages=messages)

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Count an unusable verdict as configured; spend a turn on any other unusable utterance."""
        if agent == "verifier":
            return self._judged(enough=self.on_missing_verdict == "approve")
        return super().recover(agent, parsed)

    def _judged(self, *, enough: bool) -> Move:
        if enough:
            return Move(("answer",))
        if self.turns_left() == 1:
            return (
                Move(ends=True, metrics={"gave_up": 1.0}) if self.last_turn == "fail" else Move(("answer",))
            )
        return Move(("search",))
