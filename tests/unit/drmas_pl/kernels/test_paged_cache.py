"""Key-value memory in blocks: what attention sees, copies, growth."""

from __future__ import annotations

import torch

from drmas_pl.kernels.paged_cache import Cells, PagedCache


def cells(*columns: list[int]) -> Cells:
    return Cells(*map(torch.tensor, columns))


def states(rows: int, length: int, start: float) -> torch.Tensor:
    """Number every token of every row; one head of size 2."""
    tokens = torch.arange(rows)[:, None] * 100 + torch.arange(length) + start
    return tokens[:, None, :, None].expand(rows, 1, length, 2).float()


def test_new_tokens_are_written_and_what_is_seen_is_laid_out() -> None:
    cache = PagedCache(1)
    cache.grow(3)
    # two prompts of two tokens and one, in blocks 2 and 0
    written = cells([0, 0, 1], [0, 1, 1], [2, 2, 0], [0, 1, 0])
    cache.open(written, None, rows=2, columns=2, queries=2)
    assert (cache.get_seq_length(), cache.get_mask_sizes(2, 0)) == (0, (2, 0))
    keys = states(2, 2, 0)
    assert cache.update(keys, -keys, 0)[0] is keys, "prompts attend to what was just computed"
    layer = cache.paged_layers[0]
    assert cache.updated is layer
    assert layer.keys[2, 0, :2, 0].tolist() == [0, 1] and layer.keys[0, 0, 0, 0] == 101
    assert torch.equal(layer.values, -layer.keys)
    # one more token of each, and all of both rows are seen
    seen = cells([0, 0, 0, 1, 1], [0, 1, 2, 1, 2], [2, 2, 2, 0, 0], [0, 1, 2, 0, 1])
    cache.open(cells([0, 1], [0, 0], [2, 0], [2, 1]), seen, rows=2, columns=3, queries=1)
    assert (cache.get_seq_length(), cache.get_mask_sizes(1, 0)) == (2, (3, 0))
    found, values = cache.update(states(2, 1, 50), -states(2, 1, 50), 0)
    assert found[:, 0, :, 0].tolist() == [[0, 1, 50], [0, 101, 150]]
    assert torch.equal(values, -found)
    assert layer.get_max_length() == layer.get_max_cache_shape() == 3


def test_blocks_are_copied_exchanged_and_cleared_in_every_layer() -> None:
    cache = PagedCache(2)
    cache.grow(3)
    cache.open(cells([0, 1, 2], [0, 0, 0], [0, 1, 2], [0, 0, 0]), None, rows=3, columns=1, queries=1)
    for layer in range(2):
        cache.update(states(3, 1, layer), states(3, 1, layer), layer)
    first = [layer.keys[:, 0, 0, 0] for layer in cache.paged_layers]
    cache.copy_blocks(torch.tensor([2]), torch.tensor([0]))
    assert [part.tolist() for part in first] == [[200, 100, 200], [201, 101, 201]]
    cache.exchange_blocks(torch.tensor([2]), torch.tensor([1]))
    assert [part.tolist() for part in first] == [[200, 200, 100], [201, 201, 101]]
    cache.clear_blocks(torch.tensor([1]))
    assert [part.tolist() for part in first] == [[200, 0, 100], [201, 0, 101]]


def test_growing_keeps_what_is_there() -> None:
    cache = PagedCache(1)
    cache.grow(1)
    assert not cache.holds_memory
    cache.open(cells([0], [0], [0], [3]), None, rows=1, columns=1, queries=1)
    cache.update(states(1, 1, 7), states(1, 1, 7), 0)
    cache.grow(4)
    layer = cache.paged_layers[0]
    assert cache.holds_memory and len(layer.keys) == len(layer.values) == 4
    assert layer.keys[0, 0, 3, 0] == 7 and layer.keys[1:].abs().sum() == 0


def test_states_are_kept_in_the_type_that_is_asked_for_and_given_back_in_their_own() -> None:
    cache = PagedCache(1, dtype=torch.float32)
    cache.grow(1)
    half = states(1, 2, 0).bfloat16()
    both = cells([0, 0], [0, 1], [0, 0], [0, 1])
    cache.open(both, both, rows=1, columns=2, queries=2)
    keys, values = cache.update(half, -half, 0)
    assert cache.paged_layers[0].keys.dtype == torch.float32
    assert torch.equal(keys, half) and torch.equal(values, -half) and keys.dtype == torch.bfloat16
