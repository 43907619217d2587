"""Tree sampling: several candidates for every prompt, each tried on its own copy of team and environment; one of them is played.

A move of a trajectory, in explicit steps that :class:`~drmas_pl.rollout.collector.Collector` takes::

    snapshot ── K candidates ── K copies ── rewards ── group ── winner ── next move from the winner's copy
    (state s)   (one prompt)    (of s)      (own)      (key)    (select)

With ``select="all"`` every candidate is played on, so that a whole tree of ``depth`` turns is sampled; a candidate is then worth what
trajectories through it earn: the mean over its children.

Agents that move at once are compared one at a time: each candidate of an agent is tried beside the *first* candidates of the others, so
that what differs within a group is that agent's doing alone. Winners of all agents are then played together.

What is here is pure; coroutines, engines and threads are the collector's business.

References:
    Zhao et al., 2025 (AT-GRPO), arXiv:2510.11062; Motwani et al., 2024 (MALT, whole trees), arXiv:2412.01928.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

import torch

from drmas_pl.algorithms.turn_batch import CreditRule, TurnScorer, build_turn_batch
from drmas_pl.env import Outcome
from drmas_pl.errors import ContractError
from drmas_pl.functional.credit import propagate_values
from drmas_pl.types import Task, Trajectory, Turn
from drmas_pl.utils.validation import to_number

Select = Literal["argmax", "first", "random", "softmax", "all"]


@dataclass(frozen=True, slots=True)
class TreeSampling:
    """How trees are grown.

    Attributes:
        candidates: K, sampled for every prompt of the agents that learn; 1 is parallel sampling.
        select: Which candidate is played: the one of the highest score (``argmax``, the earliest of equal ones), the ``first``, a
            ``random`` one, one drawn in proportion to exp(score / temperature) (``softmax``), or ``all`` of them.
        temperature: Of ``softmax``, above 0.
        depth: Of ``all``: turns with several candidates; later ones have one.
        agents: Agents that are given K candidates, the others one; None gives them to all.
        credit: What a candidate is credited with; None is the team's reward, its agent's own and its local one.
    """

    candidates: int
    select: Select = "argmax"
    temperature: float = 1.0
    depth: int = 3
    agents: frozenset[str] | None = None
    credit: CreditRule | None = None

    def count(self, agent: str) -> int:
        """Return the number of candidates that an agent is asked for."""
        return self.candidates if self.agents is None or agent in self.agents else 1


def number_candidates(placed: Sequence[Turn], spoken: Sequence[Sequence[Turn]]) -> list[list[Turn]]:
    """Give candidates the place of their agent's turn, and numbers where there are several.

    Args:
        placed: The first candidate of every agent that moves, as :meth:`~drmas_pl.rollout.episode.Episode.place` returned it.
        spoken: The candidates of every agent, in the same order.
    """
    return [
        [
            replace(
                turn,
                index=first.index,
                agent_index=first.agent_index,
                step=first.step,
                move=first.move,
                moved_with=first.moved_with,
                observation=first.observation,
                candidate=number if len(own) > 1 else None,
            )
            for number, turn in enumerate(own)
        ]
        for first, own in zip(placed, spoken, strict=True)
    ]


def trial_moves(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the moves that are tried, as candidate numbers by agent: the first of all, and those in which one agent does otherwise.

    >>> trial_moves([3])
    [(0,), (1,), (2,)]
    >>> trial_moves([2, 3])
    [(0, 0), (1, 0), (0, 1), (0, 2)]
    """
    first = (0,) * len(counts)
    return [first] + [
        (*first[:place], number, *first[place + 1 :])
        for place, count in enumerate(counts)
        for number in range(1, count)
    ]


def pay(turn: Turn, outcome: Outcome) -> Turn:
    """Return a candidate with what the move it was tried in paid: the team reward, its agent's own and its local one."""
    info = outcome[4]
    return replace(
        turn,
        reward=outcome[1],
        local_reward=info["local_rewards"].get(turn.agent, 0.0),
        own_reward=info["rewards"].get(turn.agent, 0.0),
    )


def pay_candidates(
    candidates: Sequence[Sequence[Turn]], outcomes: Mapping[tuple[int, ...], Outcome]
) -> list[list[Turn]]:
    """Return every candidate with what was paid where it was tried beside the first candidates of the others.

    Args:
        candidates: Of every agent that moves.
        outcomes: By move, see :func:`trial_moves`.
    """
    first = (0,) * len(candidates)
    return [
        [
            pay(turn, outcomes[(*first[:place], number, *first[place + 1 :])])
            for number, turn in enumerate(own)
        ]
        for place, own in enumerate(candidates)
    ]


def compared(own: Sequence[Turn], rewards: Sequence[float], what: str) -> list[Turn]:
    """Return an agent's candidates with local rewards from a comparison of them all on top.

    Args:
        own: Candidates with what they were paid alone.
        rewards: One for each.
        what: The method that returned them, for messages.

    Raises:
        ContractError: There are more or fewer rewards than candidates, or one is no finite number.
    """
    if len(rewards) != len(own):
        raise ContractError(
            f"{what}: {own[0].agent!r} has {len(own)} candidates, expected one reward for each, got {len(rewards)}"
        )
    return [
        replace(turn, local_reward=turn.local_reward + to_number(f"{what}: a reward", reward))
        for turn, reward in zip(own, rewards)
    ]


def score_candidates(
    task: Task, candidates: Sequence[Turn], agents: Mapping[str, TurnScorer], *, credit: CreditRule | None
) -> list[float]:
    """Return the scores that candidates of one prompt are trained with; NaN for those that are not trained.

    Args:
        task: What is played.
        candidates: With what they were paid.
        agents: Agents by name.
        credit: What a candidate is credited with.
    """
    own = {turn.agent: turn.own_reward for turn in candidates if turn.own_reward}
    group = Trajectory(task, 0, (), 0.0, "truncated", rewards=own, candidates=tuple(candidates))
    return build_turn_batch([group], agents, credit=credit).score.tolist()


@dataclass(frozen=True, slots=True)
class Subtree:
    """A move in a whole tree, and everything that followed from it.

    Attributes:
        turns: Of the agents that moved.
        children: What was tried next; none where the episode was over.
        end: What was played from the start to here, where the episode was over.
    """

    turns: tuple[Turn, ...]
    children: tuple[Subtree, ...] = ()
    end: Trajectory | None = None


def whole_trajectory(roots: Sequence[Subtree]) -> Trajectory:
    """Return the first path of a whole tree, which parallel sampling would have played, with the whole tree as candidates.

    Args:
        roots: What was tried first; at least one.
    """
    moves: list[Subtree] = []
    parents: list[int] = []
    waiting = [(root, -1) for root in reversed(roots)]
    while waiting:
        move, parent = waiting.pop()
        waiting += [(child, len(moves)) for child in reversed(move.children)]
        moves.append(move)
        parents.append(parent)
    places = list(itertools.accumulate((len(move.turns) for move in moves), initial=0))
    values = _values(moves, parents)
    candidates = [
        replace(
            turn,
            # a move of several agents is known by the last of them
            parent=None if parent < 0 else places[parent + 1] - 1,
            reward=values[place][None],
            own_reward=values[place].get(turn.agent, 0.0),
        )
        for place, (move, parent) in enumerate(zip(moves, parents))
        for turn in move.turns
    ]
    first = [0]
    while moves[first[-1]].children:
        # depth first: the first child comes next
        first.append(first[-1] + 1)
    end = moves[first[-1]].end
    assert end is not None
    numbers = [number for place in first for number in range(places[place], places[place + 1])]
    turns = tuple(
        replace(turn, candidate=candidates[number].candidate, parent=candidates[number].parent)
        for turn, number in zip(end.turns, numbers, strict=True)
    )
    return replace(end, turns=turns, candidates=tuple(candidates))


def _values(moves: Sequence[Subtree], parents: Sequence[int]) -> list[dict[str | None, float]]:
    """Return what each move is worth, to the team (None) and to agents that are paid alone."""
    ends = [move.end for move in moves]
    paid = sorted({agent for end in ends if end is not None for agent in end.rewards})
    columns: dict[str | None, list[float]] = {None: [0.0 if end is None else end.reward for end in ends]}
    for agent in paid:
        columns[agent] = [0.0 if end is None else end.rewards.get(agent, 0.0) for end in ends]
    parent = torch.tensor(parents, dtype=torch.int64)
    worth = {
        name: propagate_values(torch.tensor(column, dtype=torch.float64), parent).tolist()
        for name, column in columns.items()
    }
    return [{name: column[place] for name, column in worth.items()} for place in range(len(moves))]


def choose(scores: Sequence[float], select: Select, *, temperature: float = 1.0, seed: int = 0) -> int:
    """Return the number of the candidate that is played.

    Args:
        scores: Of the candidates; those that are not finite are chosen only where no other is, or blindly.
        select: See :class:`TreeSampling`.
        temperature: Of ``softmax``.
        seed: Of ``random`` and ``softmax``.

    >>> choose([0.0, 1.0, 1.0], "argmax"), choose([0.0, 1.0], "first")
    (1, 0)
    """
    if select == "first":
        return 0
    random = Random(seed)
    if select == "random":
        return random.randrange(len(scores))
    usable = [place for place, score in enumerate(scores) if math.isfinite(score)]
    if not usable:
        return 0
    best = max(usable, key=lambda place: scores[place])
    if select == "argmax":
        return best
    weights = [math.exp((scores[place] - scores[best]) / temperature) for place in usable]
    return random.choices(usable, weights)[0]
