"""Attention of rows laid out as a prefix tree, computed piece by piece, without a mask over all pairs of tokens.

Every segment attends causally to itself; the descendants of a segment attend to all of it. Softmax over the pieces is put together
from their log-sum-exps. Backward runs each piece with the result and the log-sum-exp of the whole, which makes the pieces' gradients
those of the whole (as in Liu et al., 2023, arXiv:2310.01889). No scores are kept.

Legend: T laid-out tokens, H heads, D head size, B segments in a batch, L longest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drmas_pl.kernels.packed_layout import Segment

_NAME = "_scaled_dot_product_flash_attention_for_cpu"
_forward: Any = getattr(torch.ops.aten, _NAME, None)
_backward: Any = getattr(torch.ops.aten, f"{_NAME}_backward", None)
# segments are padded to a common length while at most this share of the batch is padding
_MOST_PADDING = 0.2


class Batch(NamedTuple):
    """Segments of similar length that attend to themselves in one call.

    Attributes:
        start, stop: Places of neighbouring segments of one length, which need no copy; both 0 otherwise.
        length: L.
        place: (B, L) place of each token, 0 on padding; empty for neighbours.
        padding: (B, L) bool, None when there is none.
    """

    start: int
    stop: int
    length: int
    place: Tensor
    padding: Tensor | None


class Pieces(NamedTuple):
    """What has to be computed: batches of segments on their own, and segments with descendants."""

    batches: tuple[Batch, ...]
    parents: tuple[Segment, ...]


def plan(segments: Sequence[Segment]) -> Pieces:
    """Batch segments by length.

    >>> pieces = plan([Segment(0, 9, 15), Segment(9, 12, 12), Segment(12, 15, 15)])
    >>> [(batch.start, batch.stop, batch.length) for batch in pieces.batches], pieces.parents
    ([(9, 15, 3), (0, 9, 9)], (Segment(start=0, stop=9, end=15),))
    """
    batches: list[Batch] = []
    members: list[Segment] = []
    tokens = 0
    for segment in sorted(segments, key=lambda segment: (segment.stop - segment.start, segment.start)):
        length = segment.stop - segment.start
        if members and (len(members) + 1) * length > (1 + _MOST_PADDING) * (tokens + length):
            batches.append(_batch(members))
            members = []
            tokens = 0
        members.append(segment)
        tokens += length
    if members:
        batches.append(_batch(members))
    return Pieces(tuple(batches), tuple(segment for segment in segments if segment.end > segment.stop))


def attends_on(device: torch.device) -> bool:
    """Tell whether :func:`tree_attention` runs there: on CPU, with the kernels of this PyTorch."""
    return device.type == "cpu" and _forward is not None and _backward is not None


def tree_attention(
    query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, *, scale: float | None = None
) -> Tensor:
    """Attend along the prefix tree.

    Args:
        query: (1, H, T, D) on CPU.
        key: (1, H, T, D).
        value: (1, H, T, D).
        pieces: From :func:`plan`.
        scale: Multiplies the scores; None means D ** -0.5.

    Returns:
        (1, H, T, D), laid out in memory as (1, T, H, D).
    """
    return _TreeAttention.apply(query, key, value, pieces, scale)


class _TreeAttention(torch.autograd.Function):
    """Pieces of attention under one softmax."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, scale: float | None
    ) -> Tensor:
        _, heads, tokens, size = query.shape
        out = query.new_empty(1, tokens, heads, size).transpose(1, 2)
        # log-sum-exps, in float32 whatever the type of the rest
        total = query.new_empty(1, tokens, heads, dtype=torch.float32).transpose(1, 2)
        for batch in pieces.batches:
            taken = (_take(tensor, batch) for tensor in (query, key, value))
            parts = _forward(*taken, 0.0, True, scale=scale)
            for target, part in zip((out, total), parts):
                _put(target, part, batch)
        for segment in pieces.parents:
            own = slice(segment.start, segment.stop)
            below = slice(segment.stop, segment.end)
            # all of the descendants see all of the segment: no causal mask
            part, mass = _forward(
                query[:, :, below], key[:, :, own], value[:, :, own], 0.0, False, scale=scale
            )
            _mix(out[:, :, below], total[:, :, below], part, mass)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.pieces = pieces
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, total = ctx.saved_tensors
        grads = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        for batch in ctx.pieces.batches:
            taken = (_take(tensor, batch) for tensor in (gradient, query, key, value, out, total))
            for target, part in zip(grads, _backward(*taken, 0.0, True, scale=ctx.scale)):
                _put(target, part, batch)
        for segment in ctx.pieces.parents:
            own = slice(segment.start, segment.stop)
            below = slice(segment.stop, segment.end)
            places = (below, own, own)
            inputs = [tensor[:, :, place] for tensor, place in zip((query, key, value), places)]
            parts = _backward(
                gradient[:, :, below],
                *inputs,
                out[:, :, below],
                total[:, :, below],
                0.0,
                False,
                scale=ctx.scale,
            )
            # added to what the pieces before have left, while batches above write every place exactly once
            for target, part, place in zip(grads, parts, places):
                target[:, :, place] += part
        return *grads, None, None


def _mix(out: Tensor, total: Tensor, part: Tensor, mass: Tensor) -> None:
    """Join another piece of the same queries to ``out`` and its log-sum-exp ``total``, in place."""
    joined = torch.logaddexp(total, mass)
    kept, added = ((old - joined).exp().unsqueeze(-1) for old in (total, mass))
    out.copy_(out * kept + part * added)
    total.copy_(joined)


def _batch(segments: Sequence[Segment]) -> Batch:
    """Join segments of ascending length."""
    lengths = torch.tensor([segment.stop - segment.start for segment in segments])
    starts = torch.tensor([segment.start for segment in segments])
    length = int(lengths[-1])
    if int(lengths[0]) == length and bool((starts.diff() == length).all()):
        return Batch(segments[0].start, segments[-1].stop, length, torch.empty(0, dtype=torch.long), None)
    steps = torch.arange(length)
    padding = steps >= lengths[:, None]
    place = (starts[:, None] + steps).masked_fill(padding, 0)
    return Batch(0, 0, length, place, padding if bool(padding.any()) else None)


def _take(tensor: Tensor, batch: Batch) -> Tensor:
    """Return a batch's part of (1, H, T, …) as (B, H, L, …), zeros on padding."""
    if batch.stop:
        return tensor[0, :, batch.start : batch.stop].unflatten(1, (-1, batch.length)).transpose(0, 1)
    # tokens lie next to each other in memory, heads within them
    part = tensor[0].transpose(0, 1)[batch.place]
    if batch.padding is not None:
        part[batch.padding] = 0
    return part.transpose(1, 2)


def _put(tensor: Tensor, part: Tensor, batch: Batch) -> None:
    """Write (B, H, L, …) to a batch's part of (1, H, T, …)."""
    if batch.stop:
        tensor[0, :, batch.start : batch.stop].unflatten(1, (-1, batch.length)).copy_(part.transpose(0, 1))
    elif batch.padding is None:
        tensor[0].transpose(0, 1)[batch.place] = part.transpose(1, 2)
    else:
        real = ~batch.padding
        tensor[0].transpose(0, 1)[batch.place[real]] = part.transpose(1, 2)[real]
