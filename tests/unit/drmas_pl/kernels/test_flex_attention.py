"""Block-sparse attention along a prefix tree: its mask against a loop over pairs, its numbers against dense attention."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from drmas_pl.algorithms.token_batch import TrainingRow, collate
from drmas_pl.kernels import flex_attention as flex
from drmas_pl.kernels.flex_attention import (
    BLOCK,
    TreeMask,
    flex_runs,
    flex_tree_attention,
    pad_to_blocks,
    tree_mask,
)
from drmas_pl.kernels.packed_layout import PackedRows, Segment, pack_rows
from tests.helpers.flex import flex_gradients_on_cpu

CPU = torch.device("cpu")
SEGMENTS = (
    Segment(0, 150, 380),
    Segment(150, 200, 290),
    Segment(200, 260, 260),
    Segment(260, 290, 290),
    Segment(290, 380, 380),
)


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    with flex_gradients_on_cpu():
        yield


def visible(segments: tuple[Segment, ...], tokens: int) -> list[list[bool]]:
    """Who attends to whom, pair by pair: padding to itself, others back along their way to the root."""
    owner = {place: segment for segment in segments for place in range(segment.start, segment.stop)}

    def attends(row: int, column: int) -> bool:
        if row not in owner or column not in owner:
            return row == column
        mine, other = owner[row], owner[column]
        return column <= row and (mine == other or other.stop <= mine.start < other.end)

    return [[attends(row, column) for column in range(tokens)] for row in range(tokens)]


def blocks_of(lists: tuple[Tensor, Tensor]) -> set[tuple[int, int]]:
    counts, index = lists
    return {
        (row, block)
        for row, count in enumerate(counts[0, 0].tolist())
        for block in index[0, 0, row, :count].tolist()
    }


def dense_of(mask: TreeMask) -> Tensor:
    place = torch.arange(len(mask.end))
    return (place <= place[:, None]) & (place[:, None] < mask.end)


@st.composite
def trees(draw: st.DrawFn) -> PackedRows:
    """Rows of a few words of a small vocabulary, so that beginnings are shared at many depths; long words cross blocks."""
    words = draw(
        st.lists(st.lists(st.sampled_from([1, 2, 60, 140]), min_size=1, max_size=4), min_size=1, max_size=5)
    )
    rows = [
        TrainingRow("a", tuple(word for size in sizes for word in [size] * size), (7, 8), (0.0, 0.0), 1.0)
        for sizes in words
    ]
    return pad_to_blocks(pack_rows(collate(rows, pad_id=0, denominator=1.0), min_saved=1))


@given(trees())
def test_the_mask_is_that_of_a_loop_over_pairs(packed: PackedRows) -> None:
    tokens = packed.input_ids.shape[1]
    mask = tree_mask(packed.segments, tokens, device=CPU)
    expected = torch.tensor(visible(packed.segments, tokens))
    assert torch.equal(dense_of(mask), expected)
    squares = expected.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).transpose(1, 2).flatten(2)
    full = {(row, column) for row, column in squares.all(-1).nonzero().tolist()}
    partial = {(row, column) for row, column in squares.any(-1).nonzero().tolist()} - full
    assert blocks_of(mask.full_keys) == full and blocks_of(mask.partial_keys) == partial
    assert {(row, column) for column, row in blocks_of(mask.full_queries)} == full
    assert {(row, column) for column, row in blocks_of(mask.partial_queries)} == partial


def test_the_lists_are_those_that_the_library_finds_pair_by_pair() -> None:
    tokens = 3 * BLOCK
    mask = tree_mask(SEGMENTS, tokens, device=CPU)
    found = create_block_mask(
        lambda batch, head, row, column: (column <= row) & (row < mask.end[column]),
        None,
        None,
        tokens,
        tokens,
        "cpu",
    )
    theirs = (
        (found.kv_num_blocks, found.kv_indices),
        (found.full_kv_num_blocks, found.full_kv_indices),
        (found.q_num_blocks, found.q_indices),
        (found.full_q_num_blocks, found.full_q_indices),
    )
    for (count, index), (expected_count, expected_index) in zip(mask[1:], theirs):
        assert torch.equal(count, expected_count) and torch.equal(index, expected_index)
        assert count.dtype == index.dtype == torch.int32


def test_padding_fills_blocks_and_attends_to_itself() -> None:
    packed = pad_to_blocks(
        PackedRows(torch.ones(1, 300), torch.arange(300)[None], (Segment(0, 300, 300),), torch.tensor([299]))
    )
    assert packed.input_ids.shape == packed.position_ids.shape == (1, 3 * BLOCK)
    dense = dense_of(tree_mask(packed.segments, 3 * BLOCK, device=CPU))
    assert (
        torch.equal(dense[300:], torch.eye(3 * BLOCK, dtype=torch.bool)[300:]) and not dense[:300, 300:].any()
    )
    short = pad_to_blocks(
        PackedRows(torch.ones(1, 3), torch.ones(1, 3), (Segment(0, 3, 3),), torch.tensor([2]))
    )
    assert short.input_ids.shape[1] == 2 * BLOCK


def draw(
    heads: int, *, tokens: int = 3 * BLOCK, size: int = 16, dtype: torch.dtype = torch.float32
) -> Tensor:
    return torch.randn(1, tokens, heads, size, dtype=dtype).transpose(1, 2).requires_grad_()


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_result_and_gradients_equal_dense_attention(key_heads: int, scale: float | None) -> None:
    torch.manual_seed(0)
    query, key, value, gradient = draw(4), draw(key_heads), draw(key_heads), draw(4)
    mask = tree_mask(SEGMENTS, 3 * BLOCK, device=CPU)
    results = []
    for out in (
        flex_tree_attention(query, key, value, mask, scale=scale),
        scaled_dot_product_attention(
            query, key, value, attn_mask=dense_of(mask), scale=scale, enable_gqa=True
        ),
    ):
        results.append((out, *torch.autograd.grad(out, (query, key, value), gradient)))
    for ours, dense in zip(*results):
        assert (ours - dense).norm() <= 1e-5 * dense.norm()


def test_under_autocast_it_takes_widened_queries_and_computes_in_half_precision() -> None:
    mask = tree_mask(SEGMENTS, 3 * BLOCK, device=CPU)
    query, key, value = draw(2), draw(2), draw(2, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert flex_tree_attention(query, key, value, mask).dtype == torch.bfloat16
    assert flex_tree_attention(query, key, value, mask).dtype == torch.bfloat16


def test_one_graph_serves_micro_batches_of_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled as on accelerators, by a compiler that stops before code is generated: a new length or mask needs no new graph."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(flex._attend, dynamic=True, fullgraph=True, backend=counter)
    for blocks in (5, 3, 6, 7):
        tokens = blocks * BLOCK
        segments = (
            Segment(0, 50 * blocks, tokens),
            Segment(50 * blocks, 60 * blocks, 60 * blocks),
            Segment(60 * blocks, tokens, tokens),
        )
        mask = tree_mask(segments, tokens, device=CPU)
        query, key, value, gradient = (
            draw(4, tokens=tokens),
            draw(2, tokens=tokens),
            draw(2, tokens=tokens),
            draw(4, tokens=tokens),
        )
        found = torch.autograd.grad(compiled(query, key, value, mask, None), (query, key, value), gradient)
        dense = scaled_dot_product_attention(query, key, value, attn_mask=dense_of(mask), enable_gqa=True)
        for ours, theirs in zip(found, torch.autograd.grad(dense, (query, key, value), gradient)):
            assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
    assert counter.frame_count == 1


def test_the_trial_compares_with_dense_attention() -> None:
    assert flex._error(CPU, heads=3, size=16, dtype=torch.float32) < 1e-5
    assert flex._error(CPU, heads=3, size=16, dtype=torch.bfloat16) < flex._TOLERANCE
    assert not flex_runs(CPU, heads=3, size=16, dtype=torch.float32)


def test_a_device_where_it_fails_or_errs_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **kwargs: object) -> float:
        raise RuntimeError("no compiler\nmore of it")

    device = torch.device("cuda")
    monkeypatch.setattr(flex, "_error", refuse)
    assert not flex_runs.__wrapped__(device, heads=3, size=16, dtype=torch.float32)
    monkeypatch.setattr(flex, "_error", lambda *args, **kwargs: 0.5)
    assert not flex_runs.__wrapped__(device, heads=3, size=16, dtype=torch.float32)
    monkeypatch.setattr(flex, "_error", lambda *args, **kwargs: 1e-3)
    with caplog.at_level(logging.WARNING):
        assert flex_runs.__wrapped__(device, heads=3, size=16, dtype=torch.float32)
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        "FlexAttention does not run on cuda (RuntimeError: no compiler)",
        "FlexAttention is off by 0.5 on cuda",
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 96, 128])
def test_it_runs_on_a_gpu(dtype: torch.dtype, size: int) -> None:
    assert flex_runs(torch.device("cuda"), heads=6, size=size, dtype=dtype)
