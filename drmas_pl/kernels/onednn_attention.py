"""Attention of rows laid out as a prefix tree by matrix products, for processors with few threads.

Neighbouring tokens that see the same earlier ones form a stretch. Queries of all heads that share a key head are multiplied at once
with every key that a stretch sees, so that softmax runs over complete rows and products are large enough for oneDNN; keys are not
repeated for their queries. Rotary embedding is part of it. Scores exist for one stretch and key head at a time; weights over few keys are
kept for backward, all others are computed again.

Legend: T laid-out tokens, H query heads, K key heads, G = H / K, D head size, n tokens of a stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from drmas_pl.kernels.onednn import has_onednn, onednn_linear
from drmas_pl.kernels.packed_layout import Segment

# longest stretch, and most queries of it over the heads that share a key head: few enough for scores to stay in a processor's cache
_PLACES = 128
_QUERIES = 384
# keys of a stretch up to which its attention weights are kept for backward
_KEPT = 256
_product = onednn_linear if has_onednn() else linear

Range = tuple[int, int]


class Stretch(NamedTuple):
    """Neighbouring places ``start:stop`` that see the same earlier places.

    Attributes:
        start, stop: Its places.
        seen: Ranges of places that all of them see, and last the stretch itself, of which they see what ``mask`` tells.
        mask: (n * G, n), -inf where a place does not see another one of the stretch, 0 elsewhere.
    """

    start: int
    stop: int
    seen: tuple[Range, ...]
    mask: Tensor


def stretches(segments: Sequence[Segment], *, groups: int) -> tuple[Stretch, ...]:
    """Cut segments into stretches; short neighbours without descendants share one.

    Args:
        segments: In depth-first order.
        groups: G.

    >>> [(s.start, s.stop, s.seen) for s in stretches([Segment(0, 9, 15), Segment(9, 12, 12), Segment(12, 15, 15)], groups=1)]
    [(0, 9, ((0, 9),)), (9, 15, ((0, 15),))]
    """
    longest = max(1, min(_PLACES, _QUERIES // groups))
    # start, stop, seen, lengths of what lies side by side in it
    found: list[tuple[int, int, tuple[Range, ...], tuple[int, ...]]] = []
    around: list[Segment] = []
    for segment in segments:
        # segments come in depth-first order: what ended before this one is no ancestor of it
        while around and around[-1].end <= segment.start:
            around.pop()
        above = tuple((other.start, other.stop) for other in around)
        length = segment.stop - segment.start
        leaf = segment.end == segment.stop
        joins = leaf and bool(found) and found[-1][2] == above and bool(found[-1][3])
        if joins and segment.stop - found[-1][0] <= longest:
            # siblings side by side in one product; its mask keeps them apart
            start, _, _, parts = found.pop()
            found.append((start, segment.stop, above, (*parts, length)))
        else:
            for start in range(segment.start, segment.stop, longest):
                stop = min(start + longest, segment.stop)
                seen = (*above, (segment.start, start)) if start > segment.start else above
                found.append((start, stop, seen, (length,) if leaf and length <= longest else ()))
        if not leaf:
            around.append(segment)
    masks = {
        parts: _mask(parts, groups) for parts in {parts or (stop - start,) for start, stop, _, parts in found}
    }
    return tuple(
        Stretch(start, stop, _join((*seen, (start, stop))), masks[parts or (stop - start,)])
        for start, stop, seen, parts in found
    )


def rotated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    angles: tuple[Tensor, Tensor],
    parts: tuple[Stretch, ...],
    *,
    scale: float,
) -> Tensor:
    """Turn queries and keys by their rotary angles and attend along the prefix tree, in float32.

    Args:
        query: (1, T, H * D) on CPU.
        key: (1, T, K * D).
        value: (1, T, K * D).
        angles: Cosines and sines, (1, T, D) each with two equal halves: the first half of a head is paired with the second.
        parts: From :func:`stretches`.
        scale: Multiplies the scores.

    Returns:
        (1, T, H * D) in the type of ``value``.
    """
    return _RotatedAttention.apply(query, key, value, *angles, parts, scale)


class _RotatedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos: Tensor,
        sin: Tensor,
        parts: tuple[Stretch, ...],
        scale: float,
    ) -> Tensor:
        size = cos.shape[-1]
        heads = key.shape[-1] // size
        groups = query.shape[-1] // key.shape[-1]
        kept: list[Tensor] = []
        with torch.autocast("cpu", enabled=False):
            cos = cos[0].float()
            sin = sin[0].float()
            # (1, T, heads * D) → (T, heads, D)
            query_, key_, value_ = (states[0].unflatten(-1, (-1, size)) for states in (query, key, value))
            # the scale goes into the rotation, where it costs nothing
            turned = (_turn(query_, cos * scale, sin * scale), _turn(key_, cos, sin), value_.float())
            # (K, T * G, D): a token's G queries of one key head are neighbours. Copied, since oneDNN is slow on operands with gaps
            queries, keys, values = (_by_head(states, heads).contiguous().flatten(1, 2) for states in turned)
            out = torch.empty_like(query, dtype=value.dtype)
            out_by_head = _by_head(out[0].unflatten(-1, (-1, size)), heads)
            places = [part.stop - part.start for part in parts]
            rows = [groups * length for length in places]
            for its_queries, its_keys, its_values, its_out in zip(queries, keys, values, out_by_head):
                for part, asked, target in zip(parts, its_queries.split(rows), its_out.split(places)):
                    weights = _weights(asked, _seen(its_keys, part), part)
                    target.copy_(_product(weights, _seen(its_values, part).t()).view(target.shape))
                    if weights.shape[1] <= _KEPT:
                        kept.append(weights)
        ctx.save_for_backward(queries, keys, values, cos, sin, *kept)
        ctx.parts = parts
        ctx.scale = scale
        ctx.dtypes = (query.dtype, key.dtype, value.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, cos, sin, *kept = ctx.saved_tensors
        heads, tokens, size = keys.shape
        groups = queries.shape[1] // tokens
        out = _by_head(gradient[0].unflatten(-1, (-1, size)).float(), heads).contiguous().flatten(1, 2)
        grad_queries = torch.empty_like(queries)
        # those of keys and values are (K, D, T): of two operands oneDNN copies the left one, so the wide one has to be on the right
        grad_keys = torch.zeros(heads, size, tokens)
        grad_values = torch.zeros(heads, size, tokens)
        # in the order in which forward kept them: by head, then by stretch
        left = iter(kept)
        rows = [groups * (part.stop - part.start) for part in ctx.parts]
        with torch.autocast("cpu", enabled=False):
            for head in range(heads):
                by_row = (states[head].split(rows) for states in (queries, out, grad_queries))
                for part, asked, got, target in zip(ctx.parts, *by_row):
                    seen = _seen(keys[head], part)
                    weights = next(left) if len(seen) <= _KEPT else _weights(asked, seen, part)
                    grad_weights = _product(got, _seen(values[head], part))
                    scores = torch._softmax_backward_data(grad_weights, weights, 1, torch.float32)
                    target.copy_(_product(scores, seen.t()))
                    # many stretches see a key, so theirs are summed
                    _add(grad_keys[head], _product(asked.t(), scores.t()), part)
                    _add(grad_values[head], _product(got.t(), weights.t()), part)
        # a rotation is turned back by the opposite angle
        grad_query = _turn(_by_place(grad_queries, tokens), cos * ctx.scale, -sin * ctx.scale)
        grad_key = _turn(_by_place(grad_keys.mT, tokens), cos, -sin)
        found = (grad_query, grad_key, _by_place(grad_values.mT, tokens))
        grads = (grad.flatten(1)[None].to(dtype) for grad, dtype in zip(found, ctx.dtypes))
        return *grads, None, None, None, None


def _by_head(states: Tensor, heads: int) -> Tensor:
    """View (T, heads * G, D) as (heads, T, G, D)."""
    return states.unflatten(1, (heads, -1)).transpose(0, 1)


def _by_place(states: Tensor, tokens: int) -> Tensor:
    """Lay (heads, T * G, D) out as (T, heads * G, D)."""
    return states.unflatten(1, (tokens, -1)).transpose(0, 1).flatten(1, 2)


def _turn(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn (T, heads, D) by (T, D) angles, in float32."""
    states = states.float()
    half = states.shape[-1] // 2
    # the same angle for all heads, and for both halves of a head
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)[..., :half]
    out = states * cos
    out[..., :half].addcmul_(states[..., half:], sin, value=-1)
    out[..., half:].addcmul_(states[..., :half], sin)
    return out


def _weights(queries: Tensor, seen: Tensor, part: Stretch) -> Tensor:
    """Return (n * G, keys) attention weights of (n * G, D) queries."""
    scores = _product(queries, seen)
    scores[:, part.start - part.stop :].add_(part.mask)
    return torch.softmax(scores, 1)


def _seen(states: Tensor, part: Stretch) -> Tensor:
    """Return the rows of (T, D) that a stretch sees, itself last."""
    rows = [states[start:stop] for start, stop in part.seen]
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def _add(target: Tensor, columns: Tensor, part: Stretch) -> None:
    """Add columns to those of (D, T) that a stretch sees."""
    done = 0
    for start, stop in part.seen:
        target[:, start:stop].add_(columns[:, done : done + stop - start])
        done += stop - start


def _join(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Join neighbouring ranges."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return tuple(joined)


def _mask(lengths: tuple[int, ...], groups: int) -> Tensor:
    """Return the mask of tokens that see earlier ones within their own part of a stretch."""
    sees = torch.block_diag(*(torch.ones(length, length).tril() for length in lengths)).bool()
    return torch.zeros(sees.shape).masked_fill_(~sees, float("-inf")).repeat_interleave(groups, 0)
