"""Key-value rows: what attention sees, moves in place, memory that is reused and given back."""

from __future__ import annotations

import torch

from drmas_pl.engines.row_cache import Memory, RowCache


def states(rows: int, length: int, start: float) -> torch.Tensor:
    """Number every token of every row; one head of size 2."""
    tokens = torch.arange(rows)[:, None] * 100 + torch.arange(length) + start
    return tokens[:, None, :, None].expand(rows, 1, length, 2).float()


def test_decode_sees_the_prompt_and_what_was_appended() -> None:
    cache = RowCache(1, rows=3, columns=6, memory=Memory())
    cache.open_prefill(0, 2, start=0, stop=3)
    assert (cache.get_seq_length(), cache.get_mask_sizes(3, 0)) == (0, (3, 0))
    prompt = states(2, 3, 0)
    assert cache.update(prompt, -prompt, 0)[0] is prompt
    cache.open_decode(2, 3)
    assert (cache.get_seq_length(), cache.get_mask_sizes(1, 0)) == (3, (4, 0))
    keys, values = cache.update(states(2, 1, 50), -states(2, 1, 50), 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 1, 2, 50], [100, 101, 102, 150]]
    assert torch.equal(values, -keys)


def test_shorter_prompts_end_at_the_same_column() -> None:
    cache = RowCache(1, rows=2, columns=5, memory=Memory())
    cache.open_prefill(0, 1, start=2, stop=4)
    cache.update(states(1, 2, 7), states(1, 2, 7), 0)
    assert (cache.get_seq_length(), cache.get_mask_sizes(2, 0)) == (0, (2, 0))
    cache.open_prefill(1, 2, start=0, stop=4)
    cache.update(states(1, 4, 1), states(1, 4, 1), 0)
    cache.open_decode(2, 4)
    keys, _ = cache.update(states(2, 1, 9), states(2, 1, 9), 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 7, 8, 9], [1, 2, 3, 4, 109]]


def test_rows_are_copied_in_every_layer_up_to_the_column() -> None:
    cache = RowCache(2, rows=3, columns=3, memory=Memory())
    for layer in range(2):
        cache.open_prefill(0, 2, start=0, stop=2)
        cache.update(states(2, 2, layer), states(2, 2, layer), layer)
    cache.copy_rows(torch.tensor([1]), torch.tensor([2]), 2)
    for layer in range(2):
        assert cache.row_layers[layer].keys[2, 0, :, 0].tolist() == [100 + layer, 101 + layer, 0]
        assert cache.row_layers[layer].values[2, 0, :, 0].tolist() == [100 + layer, 101 + layer, 0]


def test_buffers_are_reused_while_they_suffice() -> None:
    memory, like = Memory(), torch.zeros(1)
    first = memory.take("a", (4, 5), like)
    first.fill_(3.0)
    again = memory.take("a", (2, 3), like)
    assert again.data_ptr() == first.data_ptr() and again.shape == (2, 3)
    assert memory.take("a", (10, 10), like).abs().sum() == 0, "new memory is finite"
    assert memory.take("a", (2, 3), like.double()).dtype == torch.float64
    memory.release()
    assert memory.take("a", (2, 3), like).abs().sum() == 0


def test_layers_report_their_size_under_both_names() -> None:
    layer = RowCache(1, rows=1, columns=7, memory=Memory()).row_layers[0]
    assert layer.get_max_length() == layer.get_max_cache_shape() == 7
