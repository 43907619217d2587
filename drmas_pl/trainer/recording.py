"""What a run adds to trajectories before it writes them down: where they belong, what they were trained with, what was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from drmas_pl.agent import Agent
from drmas_pl.algorithms.estimators import TokenAdvantages
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.tokens import decode
from drmas_pl.types import Trajectory


def with_advantages(
    trajectories: Sequence[Trajectory],
    table: TurnBatch,
    advantage: Tensor | TokenAdvantages,
    *,
    iteration: int,
) -> Iterator[Trajectory]:
    """Yield training trajectories whose turns carry what the estimator gave them.

    Args:
        trajectories: What was played.
        table: N turns of them; the others carry nothing.
        advantage: (N,) advantages, or those of tokens, of which the mean per turn counts here.
        iteration: Iteration that learnt from them, counted from 1.
    """
    values = (advantage.row if isinstance(advantage, TokenAdvantages) else advantage).tolist()
    # a table holds the very turns of the trajectories, and equal turns may have different advantages
    given = {
        id(turn): value
        for turn, value, trained in zip(table.turns, values, table.trained.tolist(), strict=True)
        if trained
    }
    for trajectory in trajectories:
        turns = tuple(replace(turn, advantage=given.get(id(turn))) for turn in trajectory.turns)
        yield replace(trajectory, turns=turns, phase="train", iteration=iteration)


def with_prompts(trajectories: Iterable[Trajectory], agents: Mapping[str, Agent]) -> Iterator[Trajectory]:
    """Yield trajectories whose turns carry the text of their prompts, special tokens included.

    Args:
        trajectories: What was played.
        agents: The agents that spoke, by name.
    """
    for trajectory in trajectories:
        turns = tuple(
            replace(turn, prompt=decode(agents[turn.agent].tokenizer, turn.prompt_ids))
            for turn in trajectory.turns
        )
        yield replace(trajectory, turns=turns)
