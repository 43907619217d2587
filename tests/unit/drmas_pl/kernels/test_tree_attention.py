"""Attention along a prefix tree, piece by piece, against plain attention under a dense mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from drmas_pl.algorithms.token_batch import collate
from drmas_pl.kernels.packed_layout import Segment, pack_rows
from drmas_pl.kernels.tree_attention import attends_on, plan, tree_attention
from tests.helpers.usual import usual
from tests.helpers.wide import branching_rows, dense_mask


def inputs(tokens: int, *, heads: int = 3, size: int = 16) -> list[Tensor]:
    """Queries, keys and values laid out in memory like those of a model, and an output gradient."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, tokens, heads, size, generator=generator).transpose(1, 2).requires_grad_()
        for _ in range(4)
    ]


@pytest.mark.parametrize("seed", usual(range(5), [0, 1]))
@pytest.mark.parametrize("scale", [None, 0.3])
def test_result_and_gradients_equal_dense_attention(seed: int, scale: float | None) -> None:
    segments = pack_rows(collate(branching_rows(seed), pad_id=0, denominator=1.0), min_saved=2).segments
    query, key, value, gradient = inputs(segments[-1].stop)
    results = []
    for attend in (
        lambda: tree_attention(query, key, value, plan(segments), scale=scale),
        lambda: scaled_dot_product_attention(query, key, value, attn_mask=dense_mask(segments), scale=scale),
    ):
        out = attend()
        results.append((out, *torch.autograd.grad(out, (query, key, value), gradient)))
    for ours, dense in zip(*results):
        torch.testing.assert_close(ours, dense, atol=2e-6, rtol=1e-5)


def test_scores_that_would_overflow_stay_finite() -> None:
    segments = (Segment(0, 4, 10), Segment(4, 7, 7), Segment(7, 10, 10))
    query, key, value, gradient = inputs(10)
    out = tree_attention(query * 100, key * 100, value, plan(segments))
    dense = scaled_dot_product_attention(query * 100, key * 100, value, attn_mask=dense_mask(segments))
    torch.testing.assert_close(out, dense, atol=1e-4, rtol=1e-4)
    assert all(part.isfinite().all() for part in torch.autograd.grad(out, (query, key, value), gradient))


def test_no_scores_between_all_tokens_exist() -> None:
    """What is kept for backward grows with the tokens, not with their pairs."""
    segments = (Segment(0, 100, 300), Segment(100, 200, 200), Segment(200, 300, 300))
    query, key, value, _ = inputs(300, heads=1, size=4)
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        tree_attention(query, key, value, plan(segments))
    assert max(kept) == 300 * 4


def test_segments_of_similar_length_are_computed_together() -> None:
    pieces = plan([Segment(0, 50, 50), Segment(50, 59, 59), Segment(59, 69, 69)])
    assert [
        (batch.length, batch.place.tolist() != [] and batch.place.shape[0]) for batch in pieces.batches
    ] == [(10, 2), (50, False)]
    assert (
        pieces.batches[0].padding is not None and pieces.batches[0].padding.sum() == 1 and not pieces.parents
    )


def test_it_runs_on_cpu_alone() -> None:
    assert attends_on(torch.device("cpu")) and not attends_on(torch.device("cuda"))
