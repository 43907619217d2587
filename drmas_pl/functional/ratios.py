"""Log importance ratios between the trained and the behaviour policy, per token, per turn or per sequence.

Legend: N rows, T response tokens, π trained policy, μ behaviour policy, sg stop-gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from drmas_pl.functional.checks import check_choice

RatioLevel = Literal["token", "turn", "sequence", "sequence_token"]

# exp(20) is about 5e8: far outside any clip range, and finite in every dtype that training uses.
MAX_LOG_RATIO = 20.0


def policy_log_ratio(
    logp: Tensor, old_logp: Tensor, mask: Tensor, *, level: RatioLevel = "token", turn: Tensor | None = None
) -> Tensor:
    """Compute the log ratio that each token's loss uses.

    - ``token``: the token's own ``log π − log μ``;
    - ``sequence`` (GSPO): the mean over the row's trained tokens, the same for all of them;
    - ``sequence_token`` (GSPO-token): the same value, but each token's gradient flows through its own log π only;
    - ``turn``: the mean over each turn of a row that packs several; with one turn per row the same as ``sequence``.

    Args:
        logp: (N, T) log π with gradient.
        old_logp: (N, T) log μ.
        mask: (N, T) bool, True on trained tokens.
        level: What shares one ratio.
        turn: (N, T) integer number of the turn inside its row, for ``turn`` only; ``None`` makes each row one turn.

    Returns:
        (N, T) log ratios; 0 where masked.

    Raises:
        ValueError: The level is unknown, shapes differ, or ``turn`` comes with another level.

    References:
        Zheng et al., 2025 (GSPO), eqs. 7 and 14, arXiv:2507.18071; Wan et al., 2025 (ReMA), arXiv:2503.09501.

    Example:
        >>> logp, old = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.5]])
        >>> mask = torch.ones(1, 2, dtype=torch.bool)
        >>> policy_log_ratio(logp, old, mask)
        tensor([[ 0.5000, -0.5000]])
        >>> policy_log_ratio(logp, old, mask, level="sequence")
        tensor([[0., 0.]])
    """
    check_choice("level", level, get_args(RatioLevel))
    if not logp.shape == old_logp.shape == mask.shape:
        shapes = f"{tuple(logp.shape)}, {tuple(old_logp.shape)}, {tuple(mask.shape)}"
        raise ValueError(
            f"logp, old_logp and mask must share one shape (N, T), got {shapes}; cut all to the response"
        )
    if turn is not None and level != "turn":
        raise ValueError(
            f"turn ids are used by level='turn' only, got level={level!r}; drop turn= or change the level"
        )
    delta = torch.where(mask, logp - old_logp, 0.0)
    if turn is not None:
        return torch.where(mask, _mean_per_turn(delta, mask, turn), 0.0)
    return torch.where(mask, _LEVELS[level](delta, mask), 0.0)


def safe_ratio(log_ratio: Tensor) -> Tensor:
    """Exponentiate a log ratio, clamped so that value and gradient stay finite.

    Args:
        log_ratio: Any shape.

    Returns:
        Ratios of the same shape; the gradient is 0 beyond the clamp at ±20.

    Example:
        >>> safe_ratio(torch.tensor([0.0, -100.0])) > 0
        tensor([True, True])
    """
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _token(delta: Tensor, mask: Tensor) -> Tensor:
    """Leave every token its own ratio."""
    return delta


def _sequence(delta: Tensor, mask: Tensor) -> Tensor:
    """Average over the row."""
    return (delta.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)).expand_as(delta)


def _sequence_token(delta: Tensor, mask: Tensor) -> Tensor:
    """Average over the row in value; the token's own gradient."""
    return _sequence(delta, mask).detach() + delta - delta.detach()


def _mean_per_turn(delta: Tensor, mask: Tensor, turn: Tensor) -> Tensor:
    """Average over each turn of each row."""
    turns = int(turn.max()) + 1 if turn.numel() else 1
    total = delta.new_zeros(delta.shape[0], turns).scatter_add(1, turn, delta)
    count = delta.new_zeros(delta.shape[0], turns).scatter_add(1, turn, mask.to(delta.dtype))
    return (total / count.clamp_min(1)).gather(1, turn)


_LEVELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": _token,
    "turn": _sequence,
    "sequence": _sequence,
    "sequence_token": _sequence_token,
}
