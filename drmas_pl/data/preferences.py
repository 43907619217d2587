"""Candidates of recorded trees as data for supervised fine-tuning and for preference optimisation, in the form that TRL reads.

A candidate is good if it is worth more than a threshold, else bad. What stands in its group, and what it is worth, is the business of
:mod:`drmas_pl.rollout.tree`.

References:
    Motwani et al., 2024 (MALT), arXiv:2412.01928.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drmas_pl.errors import DataError
from drmas_pl.types import Trajectory, Turn

Row = dict[str, str]


def completions(trajectories: Iterable[Trajectory], agent: str, *, threshold: float = 0.5) -> Iterator[Row]:
    """Yield an agent's good candidates, each different one of a prompt once: ``{"prompt": …, "completion": …}``.

    Args:
        trajectories: Recorded with their prompts.
        agent: Whose.
        threshold: What a good candidate is worth more than.

    Raises:
        DataError: The prompts were not recorded.
    """
    for group in _groups(trajectories, agent):
        for text in dict.fromkeys(turn.text for turn in group if turn.reward > threshold):
            yield {"prompt": _prompt(group[0]), "completion": text}


def preferences(trajectories: Iterable[Trajectory], agent: str, *, threshold: float = 0.5) -> Iterator[Row]:
    """Yield each pair of a good and a bad candidate for one prompt: ``{"prompt": …, "chosen": …, "rejected": …}``.

    Args:
        trajectories: Recorded with their prompts.
        agent: Whose.
        threshold: What a good candidate is worth more than.

    Raises:
        DataError: The prompts were not recorded.
    """
    for group in _groups(trajectories, agent):
        good = dict.fromkeys(turn.text for turn in group if turn.reward > threshold)
        bad = dict.fromkeys(turn.text for turn in group if not turn.reward > threshold)
        for chosen, rejected in ((one, other) for one in good for other in bad if one != other):
            yield {"prompt": _prompt(group[0]), "chosen": chosen, "rejected": rejected}


def _groups(trajectories: Iterable[Trajectory], agent: str) -> Iterator[list[Turn]]:
    """Yield the candidates of each of an agent's prompts, one group per prompt."""
    for trajectory in trajectories:
        groups: dict[tuple[int, int | None], list[Turn]] = {}
        for turn in trajectory.candidates:
            if turn.agent == agent:
                groups.setdefault((turn.index, turn.parent), []).append(turn)
        yield from groups.values()


def _prompt(turn: Turn) -> str:
    if turn.prompt is None:
        raise DataError(
            "preferences need the text of prompts, which was not recorded; record with trainer.record_prompts=true"
        )
    return turn.prompt
