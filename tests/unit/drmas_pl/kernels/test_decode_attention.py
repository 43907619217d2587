"""Attention over shared prompts against the plain kernel on copied prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from drmas_pl.kernels.decode_attention import DecodeAttentionMode, PromptRows, Span, attend, rows_by_prompt
from drmas_pl.kernels.fast_linear import FastLinearMode

LENGTHS = torch.tensor([2, 5, 5, 9])
WIDTH = 9


def bias(first: int, last: int, start: int) -> torch.Tensor:
    real = torch.arange(start, WIDTH) >= (WIDTH - LENGTHS[first:last])[:, None]
    return torch.zeros(last - first, 1, 1, WIDTH - start).masked_fill(~real[:, None, None], -torch.inf)


SPANS = {
    "one": (Span(0, 4, 0, bias(0, 4, 0)),),
    "several": (Span(0, 1, 7, None), Span(1, 3, 4, None), Span(3, 4, 0, None)),
    "ragged": (Span(0, 2, 4, bias(0, 2, 4)), Span(2, 4, 0, bias(2, 4, 0))),
}


def case(rows_of: list[int], queries: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (len(rows_of), 2, queries, 8),
        (4, 2, WIDTH, 8),
        (4, 2, WIDTH, 8),
        (len(rows_of), 2, 3, 8),
        (len(rows_of), 2, 3, 8),
    ]
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def plain(
    prompt: torch.Tensor,
    query: torch.Tensor,
    pk: torch.Tensor,
    pv: torch.Tensor,
    rk: torch.Tensor,
    rv: torch.Tensor,
) -> torch.Tensor:
    """Copy every row's prompt and call the kernel in float64."""
    real = torch.arange(WIDTH) >= (WIDTH - LENGTHS)[:, None]
    mask = torch.cat([real[prompt], torch.ones(len(prompt), rk.shape[2], dtype=torch.bool)], 1)[:, None, None]
    keys, values = torch.cat([pk[prompt], rk], 2), torch.cat([pv[prompt], rv], 2)
    return scaled_dot_product_attention(
        query.double(), keys.double(), values.double(), attn_mask=mask, scale=0.4
    )


def make_prompt_rows(prompt: list[int], spans: tuple[Span, ...]) -> PromptRows:
    rows, place = rows_by_prompt(np.array(prompt), 4)
    return PromptRows(torch.from_numpy(rows), torch.from_numpy(place), spans)


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("prompt", [[0, 1, 2, 3], [3, 0, 1, 1, 3, 2, 3], [3, 3, 3], [1]])
def test_it_equals_the_kernel_on_copied_prompts(prompt: list[int], queries: int, spans: str) -> None:
    query, pk, pv, rk, rv = case(prompt, queries, torch.float32)
    found = attend(query, (pk, pv), (rk, rv), make_prompt_rows(prompt, SPANS[spans]), scale=0.4)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), plain(torch.tensor(prompt), query, pk, pv, rk, rv), atol=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_reduced_in_float32(autocast: bool) -> None:
    prompt = [3, 0, 1, 1]
    query, pk, pv, rk, rv = case(prompt, 2, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = attend(query, (pk, pv), (rk, rv), make_prompt_rows(prompt, SPANS["ragged"]), scale=0.4)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), plain(torch.tensor(prompt), query, pk, pv, rk, rv), atol=1e-2)


def test_padding_may_hold_anything_finite() -> None:
    prompt = [0, 1, 1]
    query, pk, pv, rk, rv = case(prompt, 1, torch.float32)
    spoiled = pk.clone(), pv.clone()
    for part in spoiled:
        part[0, :, :7] = 1e20
    clean = attend(query, (pk, pv), (rk, rv), make_prompt_rows(prompt, SPANS["one"]), scale=0.4)
    assert torch.equal(
        attend(query, spoiled, (rk, rv), make_prompt_rows(prompt, SPANS["one"]), scale=0.4), clean
    )


def test_rows_are_arranged_by_prompt_in_their_order() -> None:
    rows, place = rows_by_prompt(np.array([2, 0, 2, 2]), 4)
    assert rows.tolist() == [[1, 0, 0], [0, 0, 0], [0, 2, 3], [0, 0, 0]]
    assert place.tolist() == [6, 0, 7, 8]
    assert rows.reshape(-1)[place].tolist() == [0, 1, 2, 3]


def test_attention_outside_decoding_is_left_alone() -> None:
    query = torch.randn(1, 2, 4, 8)
    with DecodeAttentionMode():
        found = scaled_dot_product_attention(query, query, query, is_causal=True)
    assert torch.equal(found, scaled_dot_product_attention(query, query, query, is_causal=True))
    assert issubclass(DecodeAttentionMode, FastLinearMode)
