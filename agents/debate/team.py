"""A debate: all debaters answer at once, round by round, and the answer that most of them gave is the team's.

In each round every debater sees all solutions of the rounds before, and none of its own round. After the last one the latest solutions
vote, and a solution with the most frequent answer becomes the environment's single action.

References:
    Du et al., 2023, "Improving factuality and reasoning in language models through multiagent debate", arXiv:2305.14325.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, Final

import gymnasium

from drmas_pl.agents.debate.roles import Debater
from drmas_pl.agents.loop.team import Judge
from drmas_pl.parsing import Grammar, Parsed
from drmas_pl.parsing.boxed import last_box
from drmas_pl.team import MAX_OBSERVATION_CHARS, Move, OnInvalid, Step, Team
from drmas_pl.types import Message, MetricInfo

DEBATERS: Final = ("debater_1", "debater_2", "debater_3")
VOTED: Final = {
    "agreement": MetricInfo(
        "share of the debaters whose latest answer is the vote's; 0 without any answer",
        "Whether they agree at the end.",
        "rises, but not to 1 at once: debaters who always agree are one agent",
    )
}
JUDGED: Final = {
    "first_vote_correct": MetricInfo(
        "1 if the vote after the first round is right, else 0",
        "What the debaters are worth without a debate.",
        "rises; below success where the debate earns its calls",
    )
}


class DebateTeam(Team):
    r"""Plays rounds in which all three debaters speak at once, then a vote, on a task with one final action.

    Answers are compared as they stand in ``\boxed{…}``, spaces left out; of equally frequent ones that of the debater who is named first
    counts.

    Args:
        env: The environment; its action is a solution text.
        rounds: Number of rounds, at least 1; 1 is a vote without a debate.
        answer_reward: Local reward of a debater whose solution in the last round is right, at least 0; needs an environment with a
            ``judge``.
        on_invalid: ``continue`` leaves out solutions without an answer, and lets the debater's earlier one vote; ``end`` ends the episode
            without reward at the first one.
        max_observation_chars: Length that questions and observations are cut to, with a note that says so.

    Raises:
        ValueError: An argument is out of its range, or ``answer_reward`` is set in an environment that cannot judge.
    """

    possible_agents: ClassVar[tuple[str, ...]] = DEBATERS
    grammars: ClassVar[Mapping[str, Grammar]] = dict.fromkeys(DEBATERS, Debater.grammar)
    highlights = ("first_vote_correct", "agreement")
    metric_info = VOTED | JUDGED

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        rounds: int = 2,
        answer_reward: float = 0.0,
        on_invalid: OnInvalid = "continue",
        max_observation_chars: int = MAX_OBSERVATION_CHARS,
    ) -> None:
        super().__init__(env, on_invalid=on_invalid, max_observation_chars=max_observation_chars)
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {rounds}")
        if answer_reward < 0:
            raise ValueError(f"answer_reward must be at least 0, got {answer_reward}")
        if answer_reward and not isinstance(self.unwrapped, Judge):
            raise ValueError(
                f"answer_reward needs an environment with a judge method, got {type(self.unwrapped).__name__}; set answer_reward=0"
            )
        self.rounds = rounds
        self.answer_reward = answer_reward
        self.played: list[Mapping[str, str]] = []
        self.solutions: dict[str, str] = {}
        if not isinstance(self.unwrapped, Judge):
            self.metric_info = VOTED  # type: ignore[misc]  # what can be told of the first vote depends on the environment

    def begin(self) -> tuple[Step, ...]:
        """Let all debaters start from nothing."""
        self.played = []
        self.solutions = {}
        return (frozenset(DEBATERS),)

    def play(self, agent: str, parsed: Parsed) -> Move:
        """Close a round in which one debater alone said something of use."""
        return self.play_jointly({agent: parsed})

    def play_jointly(self, utterances: Mapping[str, Parsed]) -> Move:
        """Show everybody the round's solutions, or put the latest ones to the vote."""
        solutions = {agent: parsed.action for agent, parsed in utterances.items()}
        self.played.append(solutions)
        self.solutions |= solutions
        messages = tuple(Message(agent, "solution", text) for agent, text in solutions.items())
        winner, agreement = vote(self.solutions)
        metrics = {}
        if len(self.played) == 1 and isinstance(self.unwrapped, Judge):
            metrics["first_vote_correct"] = float(self._is_right(winner))
        if len(self.played) < self.rounds:
            return Move((frozenset(DEBATERS),), messages=messages, metrics=metrics)
        rewards = {}
        if self.answer_reward:
            rewards = {agent: self.answer_reward * self._is_right(text) for agent, text in solutions.items()}
        metrics["agreement"] = agreement
        return Move(action=winner, messages=messages, metrics=metrics, local_reward=rewards)

    def recover(self, agent: str, parsed: Parsed) -> Move:
        """Close a round in which nobody said anything of use."""
        return self.play_jointly({})

    def visible_messages(self, agent: str) -> tuple[Message, ...]:
        """Return the solutions of earlier rounds, in each the agent's own first, then those of the others and their answers in a row."""
        shown = []
        for solutions in self.played:
            others = {author: text for author, text in solutions.items() if author != agent}
            if agent in solutions:
                shown.append(Message(agent, "own", solutions[agent]))
            shown += [Message(author, "other", text) for author, text in others.items()]
            if others:
                shown.append(Message("env", "answers", " ".join(map(_answer, others.values()))))
        return tuple(shown)

    def _is_right(self, solution: str) -> bool:
        env = self.unwrapped
        return isinstance(env, Judge) and env.judge(solution).status == "correct"


def vote(solutions: Mapping[str, str]) -> tuple[str, float]:
    r"""Return a solution with the most frequent answer, and the share of the debaters that gave it; an empty one if there are none.

    >>> vote({"debater_1": r"\boxed{5}", "debater_2": r"so \boxed{4}", "debater_3": r"\boxed{ 4 }"})
    ('so \\boxed{4}', 0.6666666666666666)
    """
    answers = {agent: _answer(solutions[agent]) for agent in DEBATERS if agent in solutions}
    if not answers:
        return "", 0.0
    # of equal counts the one that came first
    answer, count = Counter(answers.values()).most_common(1)[0]
    author = next(agent for agent, own in answers.items() if own == answer)
    return solutions[author], count / len(DEBATERS)


def _answer(solution: str) -> str:
    box = last_box(solution)
    return "" if box is None or box.content is None else "".join(box.content.split())
