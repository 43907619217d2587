"""Forward passes of a Transformers causal language model over a :class:`~drmas_pl.kernels.paged_cache.PagedCache`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from drmas_pl.kernels.decode_attention import AttentionPlan, DecodeAttentionMode
from drmas_pl.kernels.fused_step import FusedStep, can_fuse
from drmas_pl.kernels.paged_cache import PagedCache


class ModelRunner:
    """Next-token logits, asked for with the arguments that the model's Transformers version understands.

    Args:
        policy: A Transformers causal language model, possibly wrapped by PEFT.
        may_split: Whether attention may be split into blocks at all.

    Attributes:
        layers: Number of decoder layers.
        splits_attention: Whether attention can be computed block by block. It cannot where attention is not the plain
            scaled-dot-product kind, or where a window limits how far back a token sees; the blocks of each row are then joined.
        fuses: Whether decoding leaves the modules of the model aside; copies of its weights are then kept, and must be given up
            when the weights change.
    """

    def __init__(self, policy: Any, *, may_split: bool = True) -> None:
        base = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        config = policy.config.get_text_config()
        names = inspect.signature(base.forward).parameters
        other_layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        windowed = getattr(config, "sliding_window", None) or other_layers
        self.layers: int = config.num_hidden_layers
        self.splits_attention = may_split and config._attn_implementation == "sdpa" and not windowed
        self.fuses = self.splits_attention and can_fuse(policy)
        # a fused step packs the weights itself; a second copy of each would be wasted
        self._mode = DecodeAttentionMode(packs=not self.fuses)
        self._policy = policy
        self._step: FusedStep | None = None
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._extra = {"logits_to_keep": 1} if "logits_to_keep" in names else {}

    def prefill(self, ids: Tensor, padding: Tensor | None, *, columns: int, cache: PagedCache) -> Tensor:
        """Return (P, V) logits after prompts.

        Args:
            ids: (P, L) last ids of each prompt, padded on the left.
            padding: (P,) how many of the last ``columns`` are padding; None when no prompt has any.
            columns: Number of columns with those that the cache already holds, at least L.
            cache: Receives the ids' columns.
        """
        known = columns - ids.shape[1]
        column = torch.arange(columns, device=ids.device)
        if padding is None:
            padding = torch.zeros(1, dtype=torch.long, device=ids.device)
            if known == 0:
                return self._run(ids, None, column[None], cache)
        mask = (column >= padding[:, None]).expand(len(ids), -1)
        positions = (column[known:] - padding[:, None]).clamp(min=0)
        return self._run(
            ids, _causal(mask, known) if self.splits_attention else mask.long(), positions, cache
        )

    def decode(
        self,
        ids: Tensor,
        positions: Tensor,
        *,
        cache: PagedCache,
        plan: AttentionPlan | None,
        mask: Tensor | None,
    ) -> Tensor:
        """Return (R, V) logits after one more token per row.

        Args:
            ids: (R,) token ids.
            positions: (R,) position of each.
            cache: Holds what came before and receives the new tokens.
            plan: Which row uses which blocks, where attention is split.
            mask: (R, C) bool, True on real columns, where it is not; None when there is no padding.
        """
        if self.fuses and plan is not None:
            if self._step is None:
                self._step = FusedStep(self._policy, rows=len(ids))
            return self._step(ids, positions, cache=cache, plan=plan)
        self._mode.cache = cache
        self._mode.plan = plan
        try:
            return self._run(ids[:, None], None if mask is None else mask.long(), positions[:, None], cache)
        finally:
            # prefill attends by the model's own kernel
            self._mode.plan = None

    def _run(self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: PagedCache) -> Tensor:
        # nothing else may run inside, since every operation pays for it
        with self._mode:
            output = self._policy(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{self._cache_name: cache},
                **self._extra,
            )
        return output.logits[:, -1]


def _causal(real: Tensor, known: int) -> Tensor:
    """Combine (P, C) real columns with causality to a (P, 1, C − known, C) mask; padding attends to itself, to stay finite."""
    columns = torch.arange(real.shape[1], device=real.device)
    queries = columns[known:, None]
    return (real[:, None, None, :] & (columns <= queries)) | (columns == queries)
