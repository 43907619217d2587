"""Values of sampled tokens under a critic.

As for log-probs, beginnings that rows share are computed once where the backbone's attention allows it, see
:mod:`drmas_pl.kernels.packed_forward`; values and gradients are those of separate rows.

Legend: N rows, R response length, M sampled tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drmas_pl.algorithms.token_batch import TokenBatch
from drmas_pl.kernels.packed_forward import lay_out_rows, packs, run_value_model


def response_values(critic: nn.Module, batch: TokenBatch) -> Tensor:
    """Judge the state before each sampled token in one forward pass.

    Args:
        critic: A :class:`~drmas_pl.models.value_head.ValueModel`, possibly wrapped.
        batch: Left-padded prompts and right-padded responses.

    Returns:
        (N, R) float32, 0 where masked.

    Raises:
        ConfigError: The backbone has been changed since it was tried out.
    """
    values = run_value_model(critic, lay_out_rows(critic, batch, tree=packs(critic)))
    # (M,) → (N, R): the wanted tokens are in the order of the mask
    return torch.zeros(batch.response_mask.shape, device=values.device).masked_scatter(
        batch.response_mask, values
    )
