"""Lay rows out with each distinct prompt once, padded to rectangles, for attention kernels that take a mask.

Legend: N rows, G distinct prompts, P prompt length, R response length, S responses of one prompt laid end to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from drmas_pl.algorithms.token_batch import TokenBatch

# who a laid-out token belongs to, beside row numbers from 0
PADDING, PROMPT = -1, -2


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Rows laid out with each distinct prompt once.

    Attributes:
        input_ids: (G, P + S).
        position_ids: (G, P + S), those of separate rows.
        mask: (G, 1, P + S, P + S) bool, which token attends to which.
        group: (N,) row's prompt.
        before: (N, R) place of the token before each response token, counted from the last prompt token.
        width: P.
    """

    input_ids: Tensor
    position_ids: Tensor
    mask: Tensor
    group: Tensor
    before: Tensor
    width: int


def takes_any_mask(policy: nn.Module) -> bool:
    """Tell whether the model's attention accepts an arbitrary (G, 1, T, T) mask: plain scaled-dot-product attention in every layer."""
    config: Any = getattr(policy, "config", None)
    if config is None:
        return False
    config = config.get_text_config()
    windowed = getattr(config, "sliding_window", None) or set(getattr(config, "layer_types", None) or ()) - {
        "full_attention"
    }
    return config._attn_implementation == "sdpa" and not windowed


def share_prompts(batch: TokenBatch) -> SharedPrompts | None:
    """Lay rows out with each distinct prompt once, or return None when no two rows have the same prompt.

    Args:
        batch: N rows of one micro-batch.
    """
    rows, length = batch.response_mask.shape
    width = batch.input_ids.shape[1] - length
    prompts, known = batch.input_ids[:, :width], batch.attention_mask[:, :width]
    # padding ids are real ids too, so the mask is part of what makes prompts equal
    distinct, group = torch.unique(torch.cat([prompts, known.long()], dim=1), dim=0, return_inverse=True)
    if len(distinct) == rows:
        return None
    counts = batch.response_mask.sum(dim=1)
    ends = _running_sum(counts, group)
    starts = ends - counts
    total = int(ends.max())
    real = distinct[:, width:].bool()
    steps = torch.arange(length, device=group.device)
    column = torch.where(batch.response_mask, width + starts[:, None] + steps, 0)
    size = width + total
    input_ids = torch.cat([distinct[:, :width], distinct.new_zeros(len(distinct), total)], dim=1)
    lengths = real.long().cumsum(dim=1)
    position_ids = torch.cat([(lengths - 1).clamp(min=0), lengths[:, -1:].expand(-1, total)], dim=1)
    owner = input_ids.new_full(input_ids.shape, PADDING)
    owner[:, :width] = torch.where(real, PROMPT, PADDING)
    at = (group[:, None].expand(-1, length)[batch.response_mask], column[batch.response_mask])
    input_ids[at] = batch.input_ids[:, width:][batch.response_mask]
    position_ids[at] += steps.expand(rows, -1)[batch.response_mask]
    owner[at] = torch.arange(rows, device=group.device)[:, None].expand(-1, length)[batch.response_mask]
    index = torch.arange(size, device=group.device)
    past, itself = index <= index[:, None], index == index[:, None]
    own = (owner[:, None, :] == owner[:, :, None]) & (owner[:, None, :] >= 0)
    # padding attends to itself, to stay finite
    mask = ((owner[:, None, :] == PROMPT) | own) & past | itself
    before = torch.where(steps > 0, starts[:, None] + steps, 0)
    return SharedPrompts(input_ids, position_ids, mask[:, None], group, before.clamp(max=total), width)


def _running_sum(counts: Tensor, group: Tensor) -> Tensor:
    """Return (N,) sums of ``counts`` over the earlier rows of the same group, the row itself included."""
    order = torch.argsort(group, stable=True)
    sums = counts[order].cumsum(dim=0)
    first = torch.searchsorted(group[order].contiguous(), group[order].contiguous())
    base = torch.where(first > 0, sums[(first - 1).clamp(min=0)], 0)
    return torch.empty_like(counts).scatter_(0, order, sums - base)
