"""Key-value memory: what attention sees, moves in place, buffers that are reused and given back."""

from __future__ import annotations

import torch

from drmas_pl.kernels.row_cache import BufferPool, RowCache


def states(rows: int, length: int, start: float) -> torch.Tensor:
    """Number every token of every row; one head of size 2."""
    tokens = torch.arange(rows)[:, None] * 100 + torch.arange(length) + start
    return tokens[:, None, :, None].expand(rows, 1, length, 2).float()


def make(layers: int = 1, *, prompts: int = 2, width: int = 3, rows: int = 4, length: int = 3) -> RowCache:
    return RowCache(layers, prompts=prompts, width=width, rows=rows, length=length, buffers=BufferPool())


def prefill(
    cache: RowCache, rows: torch.Tensor | slice, count: int, value: float, *, queries: int = 3, layer: int = 0
) -> None:
    cache.open_prefill(rows, columns=queries, queries=queries)
    columns = states(count, queries, value)
    assert cache.update(columns, -columns, layer)[0] is columns, "prompts attend to what was just computed"


def test_joined_rows_see_their_prompt_and_what_was_appended() -> None:
    cache = make()
    prefill(cache, slice(0, 2), 2, 0)
    assert (cache.get_seq_length(), cache.get_mask_sizes(3, 0)) == (0, (3, 0))
    for step, expected in enumerate(
        ([[100, 101, 102, 50], [0, 1, 2, 150]], [[100, 101, 102, 50, 51], [0, 1, 2, 150, 151]])
    ):
        cache.open_decode(torch.tensor([1, 0]), step, joined=True)
        assert (cache.get_seq_length(), cache.get_mask_sizes(1, 0)) == (3 + step, (4 + step, 0))
        column = states(2, 1, 50 + step)
        keys, values = cache.update(column, -column, 0)
        assert keys[:, 0, :, 0].tolist() == expected
        assert torch.equal(values, -keys)


def test_split_rows_get_their_response_alone() -> None:
    cache = make(2)
    for layer in range(2):
        prefill(cache, slice(0, 2), 2, layer, layer=layer)
    cache.open_decode(torch.tensor([0, 0, 1]), 0, joined=False)
    column = states(3, 1, 7)
    keys, _ = cache.update(column, -column, 1)
    assert keys[:, 0, :, 0].tolist() == [[7], [107], [207]]
    assert cache.updated is cache.row_layers[1]
    assert torch.equal(cache.row_layers[1].response()[0], keys)
    assert cache.row_layers[1].prompt_keys[:, 0, :, 0].tolist() == [[1, 2, 3], [101, 102, 103]]


def test_shorter_prompts_end_at_the_same_column() -> None:
    cache = make()
    prefill(cache, slice(0, 1), 1, 7, queries=2)
    prefill(cache, slice(1, 2), 1, 1)
    assert cache.row_layers[0].prompt_keys[:, 0, :, 0].tolist() == [[0, 7, 8], [1, 2, 3]]


def test_responses_are_copied_in_every_layer_up_to_the_column() -> None:
    cache = make(2)
    for layer in range(2):
        prefill(cache, slice(0, 2), 2, layer, layer=layer)
    for step in range(2):
        cache.open_decode(torch.tensor([0, 1]), step, joined=False)
        for layer in range(2):
            cache.update(states(2, 1, step + 10 * layer), states(2, 1, step + 10 * layer), layer)
    cache.copy_rows(torch.tensor([1]), torch.tensor([2]), 2)
    for layer, expected in enumerate(([100, 101, 0], [110, 111, 0])):
        assert cache.row_layers[layer].response_keys[2, 0, :, 0].tolist() == expected
        assert cache.row_layers[layer].response_values[2, 0, :, 0].tolist() == expected


def test_forgotten_prompts_make_room_for_the_others() -> None:
    cache = make(prompts=4)
    prefill(cache, torch.tensor([2, 0, 1, 3]), 4, 0)
    layer = cache.row_layers[0]
    assert layer.prompt_keys[:, 0, 0, 0].tolist() == [100, 200, 0, 300]
    prefill(cache, slice(0, 4), 4, 0)
    cache.keep_prompts(torch.tensor([1, 3]))
    assert layer.prompt_keys[:, 0, :, 0].tolist() == [[100, 101, 102], [300, 301, 302]]
    assert torch.equal(layer.prompt_values, -layer.prompt_keys)
    assert layer.all_prompts[0][:, 0, 0, 0].tolist() == [0, 100, 200, 300], (
        "later batches may still adopt from them"
    )


def test_known_columns_are_adopted_and_attended_to() -> None:
    buffers = BufferPool()
    earlier = RowCache(1, prompts=2, width=3, rows=1, length=1, buffers=buffers)
    prefill(earlier, slice(0, 2), 2, 0)
    cache = RowCache(1, prompts=2, width=5, rows=1, length=1, buffers=buffers, buffer_set=1)
    # the second new prompt of five tokens begins like the first old one, the first of four like two tokens of the second
    cache.copy_prefixes(
        earlier,
        (torch.tensor([1, 1, 0, 0, 0]), torch.tensor([0, 0, 1, 1, 1])),
        (torch.tensor([0, 1, 0, 1, 2]), torch.tensor([1, 2, 0, 1, 2])),
    )
    cache.open_prefill(slice(0, 2), columns=5, queries=2)
    assert (cache.get_seq_length(), cache.get_mask_sizes(2, 0)) == (3, (5, 0))
    keys, values = cache.update(states(2, 2, 50), -states(2, 2, 50), 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 100, 101, 50, 51], [0, 1, 2, 150, 151]]
    assert torch.equal(values, -keys)
    assert earlier.row_layers[0].all_prompts[0][:, 0, :, 0].tolist() == [[0, 1, 2], [100, 101, 102]], (
        "the source is untouched"
    )


def test_buffers_are_reused_while_they_suffice() -> None:
    buffers, like = BufferPool(), torch.zeros(1)
    first = buffers.take("a", (4, 5), like)
    first.fill_(3.0)
    again = buffers.take("a", (2, 3), like)
    assert again.data_ptr() == first.data_ptr() and again.shape == (2, 3)
    assert buffers.take("a", (10, 10), like).abs().sum() == 0, "new memory is finite"
    assert buffers.take("a", (2, 3), like.double()).dtype == torch.float64
    buffers.release()
    assert buffers.take("a", (2, 3), like).abs().sum() == 0


def test_layers_report_their_size_under_both_names() -> None:
    layer = make().row_layers[0]
    assert layer.get_max_length() == layer.get_max_cache_shape() == 6


def test_states_are_kept_in_the_type_that_is_asked_for_and_given_back_in_their_own() -> None:
    cache = RowCache(1, prompts=2, width=3, rows=4, length=3, buffers=BufferPool(), dtype=torch.float32)
    half = states(2, 3, 0).bfloat16()
    cache.open_prefill(slice(0, 2), columns=3, queries=3)
    cache.update(half, -half, 0)
    assert cache.row_layers[0].prompt_keys.dtype == cache.row_layers[0].response_values.dtype == torch.float32
    assert torch.equal(cache.row_layers[0].prompt_keys, half.float())
    cache.open_prefill(slice(0, 2), columns=3, queries=1)
    keys, values = cache.update(half[:, :, 2:], -half[:, :, 2:], 0)
    assert (
        torch.equal(keys, half)
        and torch.equal(values, -half)
        and keys.dtype == values.dtype == torch.bfloat16
    )
