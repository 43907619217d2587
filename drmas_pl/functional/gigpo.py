"""Two-level advantages of GiGPO: whole episodes are compared within a task, single steps within a repeated state.

Legend: N rows, A advantage, w weight of the step part.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal, get_args

from torch import Tensor

from drmas_pl.functional.advantages import group_normalize
from drmas_pl.functional.checks import check_choice, check_integers, check_range, check_rows
from drmas_pl.functional.grouping import encode, group_ids

GigpoMode = Literal["mean_norm", "mean_std_norm"]


def anchor_ids(anchors: Sequence[str], task: Tensor, *, threshold: float = 1.0) -> Tensor:
    """Number the anchor states: rows of one task whose observation is the same, or similar enough, share an id.

    Below a threshold of 1, an observation joins the first earlier one of its task whose matching-block ratio reaches the
    threshold; the cost is quadratic in the distinct observations of a task.

    Args:
        anchors: N observations, the state in which the row acted.
        task: (N,) task ids.
        threshold: Similarity in (0, 1] from which two observations count as one state.

    Returns:
        (N,) int64 ids; no id spans two tasks.

    Raises:
        ValueError: Lengths differ, or the threshold is out of range.

    Example:
        >>> import torch
        >>> anchor_ids(["room A", "room B", "room A"], torch.tensor([0, 0, 1]))
        tensor([0, 1, 2])
        >>> anchor_ids(["room A", "room B", "room A"], torch.tensor([0, 0, 1]), threshold=0.8)
        tensor([0, 0, 1])
    """
    check_integers(task=task)
    if len(anchors) != task.numel():
        raise ValueError(
            f"anchors must have {task.numel()} entries like task, got {len(anchors)}; pass one observation per row"
        )
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be in (0, 1], got {threshold}; 1 asks for equal observations")
    keys = list(zip(task.tolist(), anchors))
    if threshold < 1:
        leaders: dict[int, list[str]] = {}
        chosen = {
            key: _leader(key[1], leaders.setdefault(key[0], []), threshold) for key in dict.fromkeys(keys)
        }
        keys = [(key[0], chosen[key]) for key in keys]
    return encode(keys)


def gigpo_step(
    step_return: Tensor, task: Tensor, anchor: Tensor, *, mode: GigpoMode = "mean_std_norm", eps: float = 1e-6
) -> Tensor:
    """Normalise returns among the rows of one task that acted in the same state; states met once give 0.

    Args:
        step_return: (N,) discounted return from the row's environment step on, see ``return_to_go``.
        task: (N,) task ids.
        anchor: (N,) state ids, see :func:`anchor_ids`.
        mode: ``mean_norm`` centres, ``mean_std_norm`` divides by the standard deviation as well.
        eps: Added to the standard deviation.

    Returns:
        (N,) float32 advantages.

    Raises:
        ValueError: Shapes or ids do not fit, or the mode is unknown.

    Example:
        >>> import torch
        >>> gigpo_step(torch.tensor([0.95, 1.0, 0.0]), torch.tensor([0, 0, 0]), torch.tensor([0, 1, 0]), mode="mean_norm")
        tensor([ 0.4750,  0.0000, -0.4750])
    """
    check_rows(step_return=step_return, task=task, anchor=anchor)
    check_integers(task=task, anchor=anchor)
    check_choice("mode", mode, get_args(GigpoMode))
    state = group_ids(task, anchor)
    return group_normalize(step_return, state, state if mode == "mean_std_norm" else None, eps=eps)


def gigpo(
    score: Tensor,
    step_return: Tensor,
    task: Tensor,
    anchor: Tensor,
    *,
    trajectory: Tensor | None,
    weight: float = 1.0,
    mode: GigpoMode = "mean_std_norm",
    eps: float = 1e-6,
) -> Tensor:
    """Add the episode advantage within the task and the step advantage within the state.

    Args:
        score: (N,) score of the row's episode.
        step_return: (N,) discounted return from the row's environment step on.
        task: (N,) task ids.
        anchor: (N,) state ids.
        trajectory: (N,) trajectory ids, so that long episodes do not count more; ``None`` counts rows.
        weight: Weight of the step part, at least 0.
        mode: ``mean_norm`` centres both parts, ``mean_std_norm`` scales them as well.
        eps: Added to the standard deviations.

    Returns:
        (N,) float32 advantages.

    Raises:
        ValueError: Shapes or ids do not fit, or a setting is out of range.

    References:
        Feng et al., 2025, arXiv:2505.10978.

    Example:
        >>> import torch
        >>> score, returns = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0.95, 1.0, 0.0, 0.0])
        >>> task, anchor, trajectory = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 1, 0, 2]), torch.tensor([0, 0, 1, 1])
        >>> gigpo(score, returns, task, anchor, trajectory=trajectory, mode="mean_norm")
        tensor([ 0.9750,  0.5000, -0.9750, -0.5000])
    """
    check_range("weight", weight, low=0.0)
    step = gigpo_step(step_return, task, anchor, mode=mode, eps=eps)
    episode = group_normalize(
        score, task, task if mode == "mean_std_norm" else None, entry=trajectory, eps=eps
    )
    return episode + weight * step


def _leader(text: str, leaders: list[str], threshold: float) -> str:
    """Find the first leader that resembles the text, or make the text a leader."""
    for leader in leaders:
        if SequenceMatcher(None, leader, text, autojunk=False).ratio() >= threshold:
            return leader
    leaders.append(text)
    return text
