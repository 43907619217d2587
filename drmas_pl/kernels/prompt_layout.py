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
PADDING = -1
PROMPT = -2


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """Rows laid out with each distinct prompt once.

    Attributes:
        input_ids: (G, P + S).
        position_ids: (G, P + S), those of separate rows.
        mask: (G, 1, P + S, P + S) bool, which token attends to which.
        prompt: (N,) which of the prompts each row has.
        before: (N, R) place of the token before each response token, counted from the last prompt token.
        width: P.
    """

    input_ids: Tensor
    position_ids: Tensor
    mask: Tensor
    prompt: Tensor
    before: Tensor
    width: int


def takes_any_mask(policy: nn.Module) -> bool:
    """Tell whether the model's attention accepts an arbitrary (G, 1, T, T) mask: plain scaled-dot-product attention in every layer."""
    config: Any = getattr(policy, "config", None)
    if config is None:
        return False
    config = config.get_text_config()
    # layers with a window or linear attention build masks of their own
    other_layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    windowed = getattr(config, "sliding_window", None) or other_layers
    return config._attn_implementation == "sdpa" and not windowed


def share_prompts(batch: TokenBatch) -> PromptLayout | None:
    """Lay rows out with each distinct prompt once, or return None when no two rows have the same prompt.

    Args:
        batch: N rows of one micro-batch.
    """
    rows, length = batch.response_mask.shape
    width = batch.input_ids.shape[1] - length
    prompts = batch.input_ids[:, :width]
    known = batch.attention_mask[:, :width].long()
    # padding ids are real ids too, so the mask is part of what makes prompts equal
    distinct, prompt = torch.unique(torch.cat([prompts, known], dim=1), dim=0, return_inverse=True)
    if len(distinct) == rows:
        return None
    counts = batch.response_mask.sum(dim=1)
    # responses of one prompt stand end to end behind it
    ends = _running_sum(counts, prompt)
    starts = ends - counts
    total = int(ends.max())
    real = distinct[:, width:].bool()
    steps = torch.arange(length, device=prompt.device)
    column = torch.where(batch.response_mask, width + starts[:, None] + steps, 0)
    size = width + total
    input_ids = torch.cat([distinct[:, :width], distinct.new_zeros(len(distinct), total)], dim=1)
    lengths = real.long().cumsum(dim=1)
    # every response goes on counting where its prompt ends, whatever stands between the two here
    position_ids = torch.cat([(lengths - 1).clamp(min=0), lengths[:, -1:].expand(-1, total)], dim=1)
    owner = input_ids.new_full(input_ids.shape, PADDING)
    owner[:, :width] = torch.where(real, PROMPT, PADDING)
    at = (prompt[:, None].expand(-1, length)[batch.response_mask], column[batch.response_mask])
    input_ids[at] = batch.input_ids[:, width:][batch.response_mask]
    position_ids[at] += steps.expand(rows, -1)[batch.response_mask]
    row = torch.arange(rows, device=prompt.device)
    owner[at] = row[:, None].expand(-1, length)[batch.response_mask]
    index = torch.arange(size, device=prompt.device)
    past = index <= index[:, None]
    itself = index == index[:, None]
    own = (owner[:, None, :] == owner[:, :, None]) & (owner[:, None, :] >= 0)
    # padding attends to itself, to stay finite
    mask = ((owner[:, None, :] == PROMPT) | own) & past | itself
    before = torch.where(steps > 0, starts[:, None] + steps, 0)
    return PromptLayout(input_ids, position_ids, mask[:, None], prompt, before.clamp(max=total), width)


def _running_sum(counts: Tensor, prompt: Tensor) -> Tensor:
    """Return (N,) sums of ``counts`` over the earlier rows of the same prompt, the row itself included."""
    order = torch.argsort(prompt, stable=True)
    sums = counts[order].cumsum(dim=0)
    ranked = prompt[order].contiguous()
    # where the rows of the same prompt begin in this order; what was summed before that is taken off again
    first = torch.searchsorted(ranked, ranked)
    base = torch.where(first > 0, sums[(first - 1).clamp(min=0)], 0)
    return torch.empty_like(counts).scatter_(0, order, sums - base)
