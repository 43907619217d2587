"""Attention of many rows over prompts that they share, so that a prompt's keys and values are read once for all its samples.

Attention to the prompt is one matrix product per prompt with the queries of all its rows; attention to each row's own response
is computed beside it; the two are joined by their normalisers. Exact up to rounding.

Legend: R rows, P prompts, G most rows of any prompt, W prompt columns, t response columns, H key-value heads, n queries per
key-value head (more than one with grouped-query attention), D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from drmas_pl.engines.branching import Ints
from drmas_pl.engines.fast_linear import FastLinearMode
from drmas_pl.engines.row_cache import RowCache


class Groups(NamedTuple):
    """The rows of every prompt as a rectangle.

    Attributes:
        rows: (P, G) row at each place; 0 where a prompt has fewer rows.
        place: (R,) place of each row in the flattened rectangle.
        mask: (P, 1, 1, W) bool, True on real prompt columns; None when there is no padding.
    """

    rows: Tensor
    place: Tensor
    mask: Tensor | None


def group_rows(prompt: Ints, prompts: int) -> tuple[Ints, Ints]:
    """Arrange rows by prompt.

    Args:
        prompt: (R,) prompt of each row.
        prompts: Number of prompts.

    Returns:
        ``rows`` (P, G) and ``place`` (R,) of :class:`Groups`.

    >>> rows, place = group_rows(np.array([1, 0, 1]), 2)
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


def attend(query: Tensor, prompt: tuple[Tensor, Tensor], response: tuple[Tensor, Tensor], groups: Groups, *, scale: float) -> Tensor:
    """Attend to shared prompts and own responses.

    Args:
        query: (R, H, n, D).
        prompt: Keys and values, (P, H, W, D) each.
        response: Keys and values, (R, H, t, D) each.
        groups: Which rows share which prompt.
        scale: Multiplies the scores.

    Returns:
        (R, H, n, D) in the query's type.
    """
    _, heads, queries, size = query.shape
    prompts, width = groups.rows.shape
    gathered = query[groups.rows].transpose(1, 2).reshape(prompts, heads, width * queries, size)
    shared = _part(gathered, *prompt, mask=groups.mask, scale=scale)
    own = _part(query, *response, mask=None, scale=scale)
    top, total, mixed = (_ungroup(part, width, groups.place) for part in shared)
    highest = torch.maximum(top, own[0])
    left, right = (top - highest).exp(), (own[0] - highest).exp()
    return ((mixed * left + own[2] * right) / (total * left + own[1] * right)).to(query.dtype)


def _part(query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return highest score, normaliser and unnormalised mixture of the values, each with a trailing dimension."""
    scores = (query * scale) @ keys.transpose(-1, -2)
    scores = scores.float()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    return top, weights.sum(-1, keepdim=True), (weights.to(values.dtype) @ values).float()


def _ungroup(grouped: Tensor, width: int, place: Tensor) -> Tensor:
    """Turn (P, H, G·n, D) into (R, H, n, D)."""
    prompts, heads, queries, size = grouped.shape
    parts = grouped.view(prompts, heads, width, queries // width, size).transpose(1, 2)
    return parts.reshape(prompts * width, heads, queries // width, size)[place]


class SharedPromptMode(FastLinearMode):
    """Replaces scaled-dot-product attention while a :class:`RowCache` is decoding, and speeds up linear layers.

    Attributes:
        cache: The cache that is decoding.
        groups: Which rows share which prompt; None while attention is left alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache: RowCache | None = None
        self.groups: Groups | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer an attention call with the layer that the cache has just updated; pass everything else on."""
        if func is scaled_dot_product_attention and self.groups is not None and self.cache is not None:
            layer = self.cache.updated
            assert layer is not None
            query, heads = args[0], layer.prompt_keys.shape[1]
            scale = (kwargs or {}).get("scale") or query.shape[-1] ** -0.5
            # query heads of one key-value head are neighbours, whether or not they were already folded into the query length
            folded = query.reshape(query.shape[0], heads, -1, query.shape[-1])
            mixed = attend(folded, (layer.prompt_keys, layer.prompt_values), layer.response(), self.groups, scale=scale)
            return mixed.view(*query.shape[:-1], mixed.shape[-1])
        return super().__torch_function__(func, types, args, kwargs)
