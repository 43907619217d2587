"""Where and how rows are laid out as a prefix tree: piece by piece on CPU, by one block-sparse kernel on accelerators.

Legend: T laid-out tokens, M predicted tokens.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn

from drmas_pl.algorithms.token_batch import TokenBatch
from drmas_pl.kernels.flex_attention import flex_runs, flex_tree_attention, pad_to_blocks, tree_mask
from drmas_pl.kernels.fused_layers import FusedLayers
from drmas_pl.kernels.packed_layout import pack_rows
from drmas_pl.kernels.packed_mode import Attend
from drmas_pl.kernels.prompt_layout import takes_any_mask
from drmas_pl.kernels.tree_attention import Pieces, attends_on, plan, tree_attention

Kernel = Literal["pieces", "blocks"]


class Tree(NamedTuple):
    """Rows as one sequence, and how it attends.

    Attributes:
        input_ids: (1, T).
        position_ids: (1, T).
        predictor: (M,) place whose output predicts each response token, in the order of the batch's response mask.
        attend: Attention along the tree.
        layers: Fused layers of the policy; None leaves them to their modules.
    """

    input_ids: Tensor
    position_ids: Tensor
    predictor: Tensor
    attend: Attend
    layers: FusedLayers | None = None


def tree_kernel(policy: nn.Module) -> Kernel | None:
    """Tell what computes attention along a prefix tree for a policy where it is; None where nothing does."""
    if not takes_any_mask(policy):
        return None
    model: Any = policy
    # a critic's own weight is its head
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else model
    weight: Tensor = head.weight
    if attends_on(weight.device):
        return "pieces"
    config = model.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # Transformers hands out keys and values with the heads of the queries
    runs = flex_runs(
        weight.device, heads=config.num_attention_heads, size=size, dtype=_precision(policy, weight)
    )
    return "blocks" if runs else None


def lay_out(policy: nn.Module, batch: TokenBatch, kernel: Kernel) -> Tree:
    """Lay out the rows of a micro-batch for one of the kernels.

    Args:
        policy: Model that will compute them.
        batch: N rows with at least one response token, on the device of the policy.
        kernel: From :func:`tree_kernel`.
    """
    if kernel == "pieces":
        packed = pack_rows(batch)
        attend = partial(attend_in_pieces, pieces=plan(packed.segments))
        return Tree(
            packed.input_ids,
            packed.position_ids,
            packed.predictor,
            attend,
            FusedLayers(policy, packed.segments),
        )
    # a segment costs this kernel nothing
    packed = pad_to_blocks(pack_rows(batch, min_saved=1))
    mask = tree_mask(packed.segments, packed.input_ids.shape[1], device=batch.input_ids.device)
    return Tree(
        packed.input_ids, packed.position_ids, packed.predictor, partial(flex_tree_attention, mask=mask)
    )


def _precision(policy: nn.Module, weight: Tensor) -> torch.dtype:
    """Return the type in which a policy attends when it is called from here."""
    kind = weight.device.type
    with policy._strategy.precision.forward_context() if isinstance(policy, _FabricModule) else nullcontext():
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def attend_in_pieces(
    query: Tensor, key: Tensor, value: Tensor, *, pieces: Pieces, scale: float | None
) -> Tensor:
    """Attend on CPU in float32: half-precision kernels are slower there, and round scores."""
    return tree_attention(query.float(), key.float(), value.float(), pieces, scale=scale).to(value.dtype)
