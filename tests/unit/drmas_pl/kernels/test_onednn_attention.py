"""Attention along a prefix tree by matrix products, rotary embedding included, against plain attention under a dense mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from drmas_pl.algorithms.token_batch import collate
from drmas_pl.kernels import onednn_attention as module
from drmas_pl.kernels.onednn_attention import Stretch, rotated_attention, stretches
from drmas_pl.kernels.packed_layout import Segment, pack_rows
from tests.helpers.usual import usual
from tests.helpers.wide import branching_rows, dense_mask

SIZE = 16


def make_segments(seed: int) -> tuple[Segment, ...]:
    return pack_rows(collate(branching_rows(seed), pad_id=0, denominator=1.0), min_saved=2).segments


def inputs(tokens: int, *, heads: int, groups: int) -> tuple[list[Tensor], tuple[Tensor, Tensor], Tensor]:
    """Queries, keys and values as projections return them, rotary angles, and an output gradient."""
    generator = torch.Generator().manual_seed(0)
    states = [
        torch.randn(1, tokens, count * SIZE, generator=generator).requires_grad_()
        for count in (heads * groups, heads, heads)
    ]
    turns = torch.rand(1, tokens, SIZE // 2, generator=generator).repeat(1, 1, 2)
    return (
        states,
        (turns.cos(), turns.sin()),
        torch.randn(1, tokens, heads * groups * SIZE, generator=generator),
    )


def dense_attention(
    states: list[Tensor], angles: tuple[Tensor, Tensor], mask: Tensor, *, scale: float
) -> Tensor:
    query, key, value = (state.unflatten(-1, (-1, SIZE)).transpose(1, 2) for state in states)
    query, key = apply_rotary_pos_emb(query, key, *angles)
    key, value = (repeat_kv(state, query.shape[1] // key.shape[1]) for state in (key, value))
    return (
        scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        .transpose(1, 2)
        .flatten(2)
    )


def visible(parts: tuple[Stretch, ...], *, groups: int) -> Tensor:
    """(T, T) bool: who sees whom according to stretches, the same for all queries of a place."""
    total = parts[-1].stop
    sees = torch.zeros(total, total, dtype=torch.bool)
    for part in parts:
        own = torch.arange(part.start, part.stop)
        columns = torch.cat([torch.arange(*span) for span in part.seen])
        assert torch.equal(columns[-len(own) :], own)
        sees[own[:, None], columns] = True
        by_query = part.mask.unflatten(0, (-1, groups)) == 0
        assert torch.equal(by_query, by_query[:, :1].expand_as(by_query))
        sees[own[:, None], own] = by_query[:, 0]
    return sees


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("groups", "longest"), [(1, 128), (2, 7), (3, 1)])
def test_stretches_are_the_tree(
    seed: int, groups: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PLACES", longest)
    segments = make_segments(seed)
    parts = stretches(segments, groups=groups)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert all(part.stop - part.start <= longest for part in parts)
    assert torch.equal(visible(parts, groups=groups), dense_mask(segments))


def test_short_neighbours_share_a_stretch_and_long_ones_are_cut() -> None:
    leaves = [Segment(200 + 20 * k, 220 + 20 * k, 220 + 20 * k) for k in range(9)]
    parts = stretches([Segment(0, 200, 380), *leaves], groups=4)
    # 384 queries of 4 heads
    assert [(part.start, part.stop) for part in parts] == [
        (0, 96),
        (96, 192),
        (192, 200),
        (200, 280),
        (280, 360),
        (360, 380),
    ]
    assert parts[4].seen == ((0, 200), (280, 360)) and parts[4].mask.shape == (320, 80)
    assert parts[3].mask is parts[4].mask


@pytest.mark.parametrize("seed", usual(range(3), [0]))
@pytest.mark.parametrize(("heads", "groups"), [(3, 1), (2, 3), (1, 4)])
@pytest.mark.parametrize("kept", [0, 40, 256])
def test_result_and_gradients_equal_dense_attention(
    seed: int, heads: int, groups: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT", kept)
    monkeypatch.setattr(module, "_PLACES", 16)
    segments = make_segments(seed)
    states, angles, gradient = inputs(segments[-1].stop, heads=heads, groups=groups)
    ours = rotated_attention(*states, angles, stretches(segments, groups=groups), scale=0.3)
    dense = dense_attention(states, angles, dense_mask(segments), scale=0.3)
    for found, expected in zip(
        (ours, *torch.autograd.grad(ours, states, gradient)),
        (dense, *torch.autograd.grad(dense, states, gradient)),
    ):
        torch.testing.assert_close(found, expected, atol=5e-6, rtol=1e-5)


def test_half_precision_is_computed_in_float32() -> None:
    segments = make_segments(0)
    states, angles, gradient = inputs(segments[-1].stop, heads=2, groups=2)
    half = [state.detach().bfloat16().requires_grad_() for state in states]
    exact = [state.detach().float().requires_grad_() for state in half]
    parts = stretches(segments, groups=2)
    with torch.autocast("cpu", torch.bfloat16):
        ours = rotated_attention(*half, angles, parts, scale=0.25)
    expected = rotated_attention(*exact, angles, parts, scale=0.25)
    assert torch.equal(ours, expected.bfloat16())
    gradient = gradient.bfloat16()
    grads = zip(
        torch.autograd.grad(ours, half, gradient), torch.autograd.grad(expected, exact, gradient.float())
    )
    assert all(torch.equal(found, wanted.bfloat16()) for found, wanted in grads)


def test_scores_that_would_overflow_stay_finite() -> None:
    segments = (Segment(0, 4, 10), Segment(4, 7, 7), Segment(7, 10, 10))
    states, angles, gradient = inputs(10, heads=1, groups=2)
    out = rotated_attention(
        states[0] * 100, states[1] * 100, states[2], angles, stretches(segments, groups=2), scale=1.0
    )
    assert out.isfinite().all() and all(
        part.isfinite().all() for part in torch.autograd.grad(out, states, gradient)
    )


def test_what_is_kept_grows_with_the_tokens_and_not_with_their_pairs() -> None:
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    for length in (600, 1200):
        states, angles, _ = inputs(length, heads=1, groups=2)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            rotated_attention(*states, angles, stretches([Segment(0, length, length)], groups=2), scale=1.0)
        kept.append(-1)
    first, second = kept[: kept.index(-1)], kept[kept.index(-1) + 1 : -1]
    # weights of the first tokens alone, whatever follows
    weights = 2 * 128 * (128 + 256)
    assert sum(first) - weights == 600 * 6 * SIZE and sum(second) - weights == 1200 * 6 * SIZE
