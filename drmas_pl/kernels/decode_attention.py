"""Attention of many rows over prompts that they share, so that a prompt's keys and values are read once for all its samples.

The scores of a prompt are one matrix product with the queries of all its rows; those of each row's own response are computed
beside it, and one softmax runs over both. Exact up to rounding.

Legend: R rows, P prompts, G most rows of any prompt, W prompt columns, t response columns, H key-value heads, n queries per
key-value head (more than one with grouped-query attention), D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from drmas_pl.kernels.branching import Ints
from drmas_pl.kernels.fast_linear import FastLinearMode
from drmas_pl.kernels.row_cache import RowCache


class Span(NamedTuple):
    """Neighbouring prompts of similar length, whose common padding is not computed.

    Attributes:
        first, last: Prompts ``first:last``.
        start: First prompt column that any of them uses.
        bias: (last − first, 1, 1, W − start) float32, 0 on real columns and minus infinity on padding; None when there is none.
    """

    first: int
    last: int
    start: int
    bias: Tensor | None


class PromptRows:
    """The rows of every prompt as a rectangle.

    Args:
        rows: (P, G) row at each place; 0 where a prompt has fewer rows.
        place: (R,) place of each row in the flattened rectangle.
        spans: Cover all prompts in order.
    """

    def __init__(self, rows: Tensor, place: Tensor, spans: tuple[Span, ...]) -> None:
        self.rows = rows
        self.place = place
        self.spans = spans
        self._lines: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def by_prompt(self, by_row: Tensor) -> Tensor:
        """Turn (R, H, n, …) into (P, H, G·n, …)."""
        _, heads, queries, last = by_row.shape
        # (R·H·n, …) lines, picked and repeated into (P·H·G·n, …): one gather moves rows to their prompt behind the head
        lines = by_row.flatten(0, 2).index_select(0, self._index(heads, queries)[0])
        return lines.view(len(self.rows), heads, -1, last)

    def by_row(self, by_prompt: Tensor) -> Tensor:
        """Turn (P, H, G·n, …) into (R, H, n, …)."""
        _, heads, lines, last = by_prompt.shape
        queries = lines // self.rows.shape[1]
        found = by_prompt.flatten(0, 2).index_select(0, self._index(heads, queries)[1])
        return found.view(len(self.place), heads, queries, last)

    def _index(self, heads: int, queries: int) -> tuple[Tensor, Tensor]:
        """Return which of the (R·H·n) lines each of the (P·H·G·n) ones is, and the other way round; the same for all layers."""
        if (heads, queries) not in self._lines:
            prompts, width = self.rows.shape
            count = len(self.place)
            device = self.rows.device
            rows = torch.arange(count * heads * queries, device=device).view(count, heads, queries)
            places = torch.arange(prompts * heads * width * queries, device=device)
            places = places.view(prompts, heads, width, queries)
            # (P, G, H, n) → (P, H, G, n): the queries of all rows of a prompt become the rows of one product
            forth = rows[self.rows].transpose(1, 2)
            # (P, H, G, n) → (P·G, H, n) → (R, H, n): places that no row has are left out
            back = places.transpose(1, 2).reshape(prompts * width, heads, queries)[self.place]
            self._lines[heads, queries] = (forth.flatten(), back.flatten())
        return self._lines[heads, queries]


def rows_by_prompt(prompt: Ints, prompts: int) -> tuple[Ints, Ints]:
    """Arrange rows by prompt.

    Args:
        prompt: (R,) prompt of each row.
        prompts: Number of prompts.

    Returns:
        ``rows`` (P, G) and ``place`` (R,) of :class:`PromptRows`.

    >>> rows, place = rows_by_prompt(np.array([1, 0, 1]), 2)
    >>> rows.tolist(), place.tolist()
    ([[1, 0], [0, 2]], [2, 0, 3])
    """
    order = np.argsort(prompt, kind="stable")
    counts = np.bincount(prompt, minlength=prompts)
    width = int(counts.max())
    within = np.arange(len(prompt)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = np.empty(len(prompt), dtype=np.int64)
    place[order] = prompt[order] * width + within
    rows = np.zeros(prompts * width, dtype=np.int64)
    rows[place] = np.arange(len(prompt))
    return rows.reshape(prompts, width), place


def attend(
    query: Tensor,
    prompt: tuple[Tensor, Tensor],
    response: tuple[Tensor, Tensor],
    prompt_rows: PromptRows,
    *,
    scale: float,
) -> Tensor:
    """Attend to shared prompts and own responses.

    Args:
        query: (R, H, n, D).
        prompt: Keys and values, (P, H, W, D) each.
        response: Keys and values, (R, H, t, D) each.
        prompt_rows: Which rows share which prompt.
        scale: Multiplies the scores.

    Returns:
        (R, H, n, D) in the query's type.
    """
    # plain products would round half-precision scores, which fused attention kernels do not
    kind = query.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        scaled = query.float() * scale
        own = prompt_rows.by_prompt(scaled @ response[0].float().transpose(-1, -2))
        grouped = prompt_rows.by_prompt(scaled)
        parts = [_attend_span(grouped, prompt, own, span) for span in prompt_rows.spans]
        mixed = torch.cat([part[0] for part in parts])
        weights = torch.cat([part[1] for part in parts])
        return (prompt_rows.by_row(mixed) + prompt_rows.by_row(weights) @ response[1].float()).to(query.dtype)


def _attend_span(
    query: Tensor, prompt: tuple[Tensor, Tensor], own: Tensor, span: Span
) -> tuple[Tensor, Tensor]:
    """Return what a span's queries (…, G·n, D) take from its prompts, and their weights (…, G·n, t) on their own responses."""
    keys, values = (part[span.first : span.last, :, span.start :].float() for part in prompt)
    scores = query[span.first : span.last] @ keys.transpose(-1, -2)
    if span.bias is not None:
        scores += span.bias
    # one softmax over prompt and response, so that nothing has to be put together from log-sum-exps
    weights = torch.cat([scores, own[span.first : span.last]], dim=-1).softmax(dim=-1)
    columns = keys.shape[2]
    return weights[..., :columns] @ values, weights[..., columns:]


class DecodeAttentionMode(FastLinearMode):
    """Replaces scaled-dot-product attention while a :class:`RowCache` is decoding, and speeds up linear layers.

    Args:
        packs: See :class:`FastLinearMode`.

    Attributes:
        cache: The cache that is decoding.
        prompt_rows: Which rows share which prompt; None while attention is left alone.
    """

    def __init__(self, *, packs: bool = True) -> None:
        super().__init__(packs=packs)
        self.cache: RowCache | None = None
        self.prompt_rows: PromptRows | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer an attention call with the layer that the cache has just updated; pass everything else on."""
        if func is scaled_dot_product_attention and self.prompt_rows is not None and self.cache is not None:
            layer = self.cache.updated
            assert layer is not None
            query = args[0]
            heads = layer.prompt_keys.shape[1]
            scale = (kwargs or {}).get("scale") or query.shape[-1] ** -0.5
            # query heads of one key-value head are neighbours, whether or not they were already folded into the query length
            folded = query.reshape(query.shape[0], heads, -1, query.shape[-1])
            prompt = (layer.prompt_keys, layer.prompt_values)
            mixed = attend(folded, prompt, layer.response(), self.prompt_rows, scale=scale)
            return mixed.view(*query.shape[:-1], mixed.shape[-1])
        # not by way of the base class: this is called for every operation of the model
        if func is linear and not kwargs:
            return self._linear(args)
        return func(*args, **(kwargs or {}))
