"""Attention over blocks against the plain kernel on rows laid out one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from drmas_pl.kernels.blocks import BLOCK
from drmas_pl.kernels.branching import Ints
from drmas_pl.kernels.decode_attention import AttentionPlan, DecodeAttentionMode, Run, attend, cut_runs
from drmas_pl.kernels.fast_linear import FastLinearMode

# blocks and tokens of each row: a shared beginning that is not full, a row of one token, scattered blocks
TABLE = np.array([[0, 1, 2], [0, 1, 5], [9, 0, 0], [40, 12, 0]])
FILL = np.array([[BLOCK, 20, 3], [BLOCK, 20, BLOCK], [1, 0, 0], [BLOCK, 7, 0]])


def case(rows: int, queries: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(rows, 2, queries, 8), (50, 2, BLOCK, 8), (50, 2, BLOCK, 6)]
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def plain(table: Ints, fill: Ints, *states: torch.Tensor) -> torch.Tensor:
    """Lay every row out and call the kernel in float64."""
    query, keys, values = states
    found = []
    for row, (blocks, counts) in enumerate(zip(table, fill)):
        own = [
            torch.cat([part[block, :, :count] for block, count in zip(blocks, counts)], 1)[None].double()
            for part in (keys, values)
        ]
        found.append(scaled_dot_product_attention(query[row : row + 1].double(), *own, scale=0.4))
    return torch.cat(found)


def plan(table: Ints = TABLE, fill: Ints = FILL) -> AttentionPlan:
    return AttentionPlan(table, fill, torch.device("cpu"))


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("rows", [[0], [2], [0, 1], [3, 0, 1, 1, 2]])
def test_it_equals_the_kernel_on_rows_laid_out(rows: list[int], queries: int) -> None:
    table, fill = TABLE[rows], FILL[rows]
    states = case(len(rows), queries, torch.float32)
    found = attend(*states, plan(table, fill), scale=0.4)
    assert found.dtype == torch.float32 and found.shape == (len(rows), 2, queries, 6)
    assert torch.allclose(found.double(), plain(table, fill, *states), atol=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_reduced_in_float32(autocast: bool) -> None:
    states = case(4, 2, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = attend(*states, plan(), scale=0.4)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), plain(TABLE, FILL, *states), atol=1e-2)


def test_empty_places_may_hold_anything_finite() -> None:
    query, keys, values = case(4, 1, torch.float32)
    spoiled = keys.clone(), values.clone()
    for part in spoiled:
        part[1, :, 20:] = 1e20
        part[9, :, 1:] = 1e20
    clean = attend(query, keys, values, plan(), scale=0.4)
    assert torch.equal(attend(query, *spoiled, plan(), scale=0.4), clean)


def test_runs_are_cut_where_that_saves_more_than_it_costs() -> None:
    blocks = np.array([0, 1, 2, 5, 60])
    assert cut_runs(blocks, np.ones(5, np.int64), overhead=12) == (Run(0, 6, 1, 0), Run(60, 61, 1, 6))
    assert cut_runs(blocks, np.ones(5, np.int64), overhead=1000) == (Run(0, 61, 1, 0),)
    users = np.array([8, 8, 1, 1, 1])
    assert cut_runs(np.arange(5), users, overhead=2) == (Run(0, 2, 8, 0), Run(2, 5, 1, 16))


def test_attention_outside_decoding_is_left_alone() -> None:
    query = torch.randn(1, 2, 4, 8)
    with DecodeAttentionMode():
        found = scaled_dot_product_attention(query, query, query, is_causal=True)
    assert torch.equal(found, scaled_dot_product_attention(query, query, query, is_causal=True))
    assert issubclass(DecodeAttentionMode, FastLinearMode)
