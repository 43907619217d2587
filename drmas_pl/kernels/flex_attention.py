"""Attention of rows laid out as a prefix tree by one block-sparse kernel, for accelerators.

A segment's descendants are the tokens right behind it, so that a token attends to exactly those earlier tokens whose segment and
descendants have not ended before it: key <= query < end[key]. One number per token is the whole mask, and blocks of pairs that
nobody attends to are told from the smallest and largest number of a block of keys; no mask over all pairs exists (FlexAttention,
Dong et al., 2024, arXiv:2412.05496).

Legend: T laid-out tokens with padding, S blocks of tokens, H query heads, K key-value heads, D head size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention

from drmas_pl.kernels.compiling import compiler_settings
from drmas_pl.kernels.packed_layout import PackedRows, Segment

log = logging.getLogger(__name__)

# side of the squares of pairs that are computed or skipped as one
BLOCK = 128
# a dimension of one block would be compiled on its own
_LEAST_BLOCKS = 2
# relative to the norm; kernels for float32 may round products to TensorFloat-32
_TOLERANCE = 2e-2


class TreeMask(NamedTuple):
    """Who attends to whom; int32 tensors on the device of the queries.

    Attributes:
        end: (T,) behind the last place that attends to a token.
        partial_keys, full_keys: For every block of queries the number of blocks of keys, (1, 1, S), and which, (1, 1, S, S); of
            whose pairs some, or all, attend.
        partial_queries, full_queries: The same for every block of keys.
    """

    end: Tensor
    partial_keys: tuple[Tensor, Tensor]
    full_keys: tuple[Tensor, Tensor]
    partial_queries: tuple[Tensor, Tensor]
    full_queries: tuple[Tensor, Tensor]


def pad_to_blocks(packed: PackedRows) -> PackedRows:
    """Append tokens up to whole blocks, so that lengths are few and kernels need not treat edges; each attends to itself alone."""
    tokens = packed.input_ids.shape[1]
    missing = max(-(-tokens // BLOCK), _LEAST_BLOCKS) * BLOCK - tokens
    ids, positions = (pad(tensor, (0, missing)) for tensor in (packed.input_ids, packed.position_ids))
    return PackedRows(ids, positions, packed.segments, packed.predictor)


def tree_mask(segments: Sequence[Segment], tokens: int, *, device: torch.device) -> TreeMask:
    """Describe the mask of a prefix tree.

    Args:
        segments: In depth-first order, from place 0 on without gaps.
        tokens: T, a multiple of :data:`BLOCK`; what lies behind the last segment is padding.
        device: Where the queries are.

    Example:
        >>> mask = tree_mask([Segment(0, 200, 300), Segment(200, 250, 250), Segment(250, 300, 300)], 384, device=torch.device("cpu"))
        >>> mask.end[[0, 199, 200, 249, 250, 300]].tolist()
        [300, 300, 250, 250, 300, 301]
        >>> count, blocks = mask.partial_keys
        >>> [blocks[0, 0, row, :number].tolist() for row, number in enumerate(count[0, 0].tolist())]
        [[0], [1], [0, 1, 2]]
        >>> count, blocks = mask.full_keys
        >>> [blocks[0, 0, row, :number].tolist() for row, number in enumerate(count[0, 0].tolist())]
        [[], [0], []]
    """
    end = torch.arange(1, tokens + 1)
    for segment in segments:
        end[segment.start : segment.stop] = segment.end
    first, last = (edge.view(1, -1) for edge in end.view(-1, BLOCK).aminmax(dim=1))
    start = torch.arange(0, tokens, BLOCK).view(-1, 1)
    # (S, S), blocks of queries by blocks of keys. All keys of a block end before or behind a query, so that the smallest end of a block
    # tells whether all pairs attend, and the largest one whether any does; on the diagonal causality cuts blocks in two
    earlier = start > start.T
    full = earlier & (first >= start + BLOCK)
    partial = (earlier & (last > start) & ~full) | (start == start.T)
    lists = [_ordered(blocks) for blocks in (partial, full, partial.T, full.T)]
    keys, full_keys, queries, full_queries = [(count.to(device), index.to(device)) for count, index in lists]
    return TreeMask(end.int().to(device), keys, full_keys, queries, full_queries)


def flex_tree_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, *, scale: float | None = None
) -> Tensor:
    """Attend along the prefix tree; compiled on accelerators, by unfused operations on CPU.

    Args:
        query: (1, H, T, D) in any floating type; under autocast computed in its type.
        key: (1, K, T, D), where K divides H.
        value: (1, K, T, D).
        mask: From :func:`tree_mask`.
        scale: Multiplies the scores; None means D ** -0.5.

    Returns:
        (1, H, T, D).
    """
    kind = query.device.type
    # unlike scaled_dot_product_attention this one is unknown to autocast; positions and norms have widened queries and keys
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
    with torch.autocast(kind, enabled=False):
        inputs = (query.to(dtype), key.to(dtype), value.to(dtype))
        if kind == "cpu":
            return _attend(*inputs, mask, scale)
        with compiler_settings():
            out: Tensor = _compiled()(*inputs, mask, scale)
            return out


@cache
def flex_runs(device: torch.device, *, heads: int, size: int, dtype: torch.dtype) -> bool:
    """Tell whether :func:`flex_tree_attention` compiles on a device and agrees with dense attention, forward and backward.

    It is tried out once per shape and type, since each has kernels of its own, on a few tokens.

    Args:
        device: Where to run.
        heads: H, to which keys and values are expanded.
        size: D.
        dtype: Type in which it is to run.
    """
    if device.type != "cuda":
        return False
    try:
        error = _error(device, heads=heads, size=size, dtype=dtype)
    except Exception as failure:  # whatever a compiler or driver raises is the finding
        why = f"{type(failure).__name__}: {failure}".splitlines()[0]
        log.warning(
            "FlexAttention does not run on %s (%s); rows that share a prompt take a dense mask", device, why
        )
        return False
    if error > _TOLERANCE:
        log.warning(
            "FlexAttention is off by %.2g on %s; rows that share a prompt take a dense mask", error, device
        )
        return False
    return True


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: TreeMask, scale: float | None) -> Tensor:
    end = mask.end
    tokens = query.shape[2]

    def attends(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < end[column])

    # put together here, so that the compiler sees one length and not two that happen to be equal
    blocks = BlockMask(
        seq_lengths=(tokens, tokens),
        kv_num_blocks=mask.partial_keys[0],
        kv_indices=mask.partial_keys[1],
        full_kv_num_blocks=mask.full_keys[0],
        full_kv_indices=mask.full_keys[1],
        q_num_blocks=mask.partial_queries[0],
        q_indices=mask.partial_queries[1],
        full_q_num_blocks=mask.full_queries[0],
        full_q_indices=mask.full_queries[1],
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=attends,
    )
    out: Any = flex_attention(
        query, key, value, block_mask=blocks, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_attend, dynamic=True, fullgraph=True)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Turn an (S, S) bool matrix into each row's number of true columns and their indices, those first."""
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(dim=1).int()[None, None], order.int().contiguous()[None, None]


def _error(device: torch.device, *, heads: int, size: int, dtype: torch.dtype) -> float:
    """Return the largest relative difference from dense attention among result and gradients."""
    tokens = _LEAST_BLOCKS * BLOCK
    segments = (Segment(0, 150, tokens), Segment(150, 200, 200), Segment(200, tokens, tokens))
    mask = tree_mask(segments, tokens, device=device)
    index = torch.arange(tokens, device=device)
    dense = (index <= index[:, None]) & (index[:, None] < mask.end)
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.randn(1, tokens, heads, size, generator=generator).to(device, dtype).transpose(1, 2)
        for _ in range(4)
    ]
    inputs = [tensor.requires_grad_() for tensor in drawn[:3]]
    results = []
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        query, key, value = inputs
        for out in (
            flex_tree_attention(query, key, value, mask),
            scaled_dot_product_attention(query, key, value, attn_mask=dense),
        ):
            results.append((out.detach(), *torch.autograd.grad(out, inputs, drawn[3])))
    return max(
        float((ours - theirs).float().norm() / theirs.float().norm()) for ours, theirs in zip(*results)
    )
