"""Log-probs of sampled tokens under a causal language model.

Rows with the same prompt are computed as one sequence where the model's attention allows it: the prompt once, behind it the
responses, each of which attends to the prompt and to itself. Results and gradients are those of separate rows. Larger models take
the path of :mod:`drmas_pl.kernels`, without padding and without logits over the whole vocabulary.

Legend: N rows, R response length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from drmas_pl.algorithms.token_batch import TokenBatch
from drmas_pl.functional.logprobs import token_entropy, token_logprobs
from drmas_pl.kernels.packed_forward import packed_logprobs, packs
from drmas_pl.kernels.prompt_layout import PromptLayout, share_prompts, takes_any_mask


@dataclass(frozen=True, slots=True)
class ResponseLogprobs:
    """Log-probs (N, R) of the response tokens and, when asked for, entropies (N, R); float32, 0 where masked."""

    logp: Tensor
    entropy: Tensor | None = None


def response_logprobs(
    policy: nn.Module,
    batch: TokenBatch,
    *,
    temperature: float = 1.0,
    entropy: Literal["value", "gradient"] | None = None,
) -> ResponseLogprobs:
    """Score the response tokens of ``batch`` in one forward.

    Args:
        policy: Causal language model with the Transformers call signature; logits are taken at response positions only.
        batch: Left-padded prompts and right-padded responses.
        temperature: Sampling temperature; log-probs are those of the tempered distribution.
        entropy: Whether to return entropies as well: their ``value`` alone, which keeps no graph over (N, R, V), or with ``gradient``.
    """
    if packs(policy):
        logp, values = packed_logprobs(
            policy, batch, temperature=temperature, entropy_gradient=entropy == "gradient"
        )
        return ResponseLogprobs(logp, None if entropy is None else values)
    shared = share_prompts(batch) if takes_any_mask(policy) else None
    logits = _separate_logits(policy, batch) if shared is None else _shared_logits(policy, shared)
    targets = batch.input_ids[:, -batch.response_mask.shape[1] :]
    zero = torch.zeros((), device=logits.device)
    logp = torch.where(batch.response_mask, token_logprobs(logits, targets, temperature=temperature), zero)
    if entropy is None:
        return ResponseLogprobs(logp)
    values = token_entropy(logits if entropy == "gradient" else logits.detach(), temperature=temperature)
    return ResponseLogprobs(logp, torch.where(batch.response_mask, values, zero))


def _shared_logits(policy: nn.Module, shared: PromptLayout) -> Tensor:
    """Return (N, R, V) logits that predict each response token."""
    logits: Tensor = policy(
        input_ids=shared.input_ids,
        attention_mask=shared.mask,
        position_ids=shared.position_ids,
        logits_to_keep=shared.input_ids.shape[1] - shared.width + 1,
        use_cache=False,
    ).logits
    return logits[shared.prompt[:, None], shared.before]


def _separate_logits(policy: nn.Module, batch: TokenBatch) -> Tensor:
    """Return (N, R, V) logits that predict each response token, every row computed on its own."""
    logits: Tensor = policy(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        position_ids=(batch.attention_mask.long().cumsum(dim=1) - 1).clamp(min=0),
        logits_to_keep=batch.response_mask.shape[1] + 1,
        use_cache=False,
    ).logits
    return logits[:, :-1]
