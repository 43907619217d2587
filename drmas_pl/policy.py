"""Log-probs of sampled tokens under a causal language model.

Legend: N rows, P prompt length, R response length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from drmas_pl.batch import TokenBatch
from drmas_pl.functional.logprobs import token_entropy, token_logprobs


@dataclass(frozen=True, slots=True)
class ResponseLogprobs:
    """Log-probs (N, R) of the response tokens and, when asked for, entropies (N, R); float32, 0 where masked."""

    logp: Tensor
    entropy: Tensor | None = None


def response_logprobs(
    policy: nn.Module, batch: TokenBatch, *, temperature: float = 1.0, entropy: Literal["value", "gradient"] | None = None
) -> ResponseLogprobs:
    """Score the response tokens of ``batch`` in one forward.

    Args:
        policy: Causal language model with the Transformers call signature; logits are taken at response positions only.
        batch: Left-padded prompts and right-padded responses.
        temperature: Sampling temperature; log-probs are those of the tempered distribution.
        entropy: Whether to return entropies as well: their ``value`` alone, which keeps no graph over (N, R, V), or with ``gradient``.
    """
    length = batch.response_mask.shape[1]
    position_ids = (batch.attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
    logits = policy(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        position_ids=position_ids,
        logits_to_keep=length + 1,
        use_cache=False,
    ).logits[:, :-1]
    targets = batch.input_ids[:, -length:]
    zero = torch.zeros((), device=logits.device)
    logp = torch.where(batch.response_mask, token_logprobs(logits, targets, temperature=temperature), zero)
    if entropy is None:
        return ResponseLogprobs(logp)
    values = token_entropy(logits if entropy == "gradient" else logits.detach(), temperature=temperature)
    return ResponseLogprobs(logp, torch.where(batch.response_mask, values, zero))
