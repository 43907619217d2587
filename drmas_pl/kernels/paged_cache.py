"""Keys and values of every running row and stored prompt, in blocks of a fixed number of tokens.

A row is a list of blocks, so rows of any length stand beside each other without padding, begin in common blocks, and give their blocks back
when they end: nothing is moved. :mod:`.blocks` knows who uses what; here are the numbers themselves.

Legend: B blocks, R rows, C columns, H key-value heads, D head size, N tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from drmas_pl.kernels.blocks import BLOCK


class Cells(NamedTuple):
    """Places of tokens: in a rectangle of rows, and in blocks.

    Attributes:
        row: (N,) row of each token.
        column: (N,) its column.
        block: (N,) the block that holds it.
        offset: (N,) its place there.
    """

    row: Tensor
    column: Tensor
    block: Tensor
    offset: Tensor


class BlockAccess:
    """What the running forward pass writes and sees; shared by all layers.

    Attributes:
        written: The new tokens and their places among the queries.
        seen: Every token that queries attend to, and its place in a rectangle of ``rows`` x ``columns``; None where attention does not
            need them: while only new tokens are attended to, and where it reads the blocks itself.
        rows: R.
        columns: How many columns queries attend to, themselves included.
        queries: How many columns are queries.
    """

    def __init__(self) -> None:
        self.written: Cells | None = None
        self.seen: Cells | None = None
        self.rows = 0
        self.columns = 0
        self.queries = 0


class PagedLayer(CacheLayerMixin):
    """Keys and values of one layer, (B, H, BLOCK, D) each.

    Args:
        access: What the forward pass writes and sees.
        dtype: Type to keep keys and values in; None keeps the model's.
    """

    is_sliding = False
    is_compileable = False
    keys: Tensor
    values: Tensor

    def __init__(self, access: BlockAccess, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.access = access
        self.kept_dtype = dtype
        self.capacity = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take memory, now that the shape of the states is known."""
        # zeros and not torch.empty: cells without a token are read with weight 0, and 0 x NaN would not vanish
        self.keys, self.values = (
            torch.zeros(
                (self.capacity, states.shape[1], BLOCK, states.shape[3]),
                dtype=self.kept_dtype or states.dtype,
                device=states.device,
            )
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens of (R, H, L, D) states; return what the queries attend to, or the states where that is not asked for."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        at = self.access
        assert at.written is not None
        place = (at.written.row, slice(None), at.written.column)
        self.write(key_states[place], value_states[place])
        if at.seen is None:
            return key_states, value_states
        return self._gather(self.keys, key_states), self._gather(self.values, value_states)

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Write the new tokens, (N, H, D) each, of a layer that has memory."""
        written = self.access.written
        assert written is not None
        place = (written.block, slice(None), written.offset)
        self.keys[place] = keys.to(self.keys.dtype)
        self.values[place] = values.to(self.values.dtype)

    def _gather(self, blocks: Tensor, like: Tensor) -> Tensor:
        """Lay out what is seen as (R, H, C, D), zero elsewhere."""
        at = self.access
        assert at.seen is not None
        out = like.new_zeros(at.rows, blocks.shape[1], at.columns, blocks.shape[3])
        found = blocks[at.seen.block, :, at.seen.offset]
        out[at.seen.row, :, at.seen.column] = found.to(like.dtype)
        return out

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return how many columns are attended to, and the first one's position."""
        return self.access.columns, 0

    def get_seq_length(self) -> int:
        """Return how many columns precede the queries."""
        return self.access.columns - self.access.queries

    def get_max_length(self) -> int:
        """Return the number of columns."""
        return self.access.columns

    # the name of get_max_length before Transformers 5
    get_max_cache_shape = get_max_length


class PagedCache(Cache):
    """A Transformers cache whose rows are lists of blocks.

    Args:
        layers: Number of decoder layers.
        dtype: Type to keep keys and values in; None keeps the model's, and is needed where keys and values are laid out for attention.
    """

    def __init__(self, layers: int, *, dtype: torch.dtype | None = None) -> None:
        self.access = BlockAccess()
        self.paged_layers = [PagedLayer(self.access, dtype=dtype) for _ in range(layers)]
        super().__init__(layers=list(self.paged_layers))
        self.updated: PagedLayer | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens of a layer, and remember which layer it was."""
        self.updated = self.paged_layers[layer_idx]
        return self.updated.update(key_states, value_states)

    def open(self, written: Cells, seen: Cells | None, *, rows: int, columns: int, queries: int) -> None:
        """Say what the next forward pass writes and sees; see :class:`BlockAccess`."""
        at = self.access
        at.written = written
        at.seen = seen
        at.rows = rows
        at.columns = columns
        at.queries = queries

    @property
    def holds_memory(self) -> bool:
        """Whether any layer has memory."""
        return any(layer.is_initialized for layer in self.paged_layers)

    def grow(self, capacity: int) -> None:
        """Have ``capacity`` blocks, those that are there included."""
        for layer in self.paged_layers:
            layer.capacity = capacity
            if layer.is_initialized:
                # one after the other, so that no more than one tensor exists twice
                layer.keys = _grown(layer.keys, capacity)
                layer.values = _grown(layer.values, capacity)

    def copy_blocks(self, source: Tensor, target: Tensor) -> None:
        """Copy blocks ``source`` (M,) onto blocks ``target`` (M,)."""
        for states in self._states():
            states[target] = states[source]

    def exchange_blocks(self, left: Tensor, right: Tensor) -> None:
        """Exchange blocks ``left`` (M,) with blocks ``right`` (M,), all of which differ."""
        for states in self._states():
            kept = states[right]
            states[right] = states[left]
            states[left] = kept

    def clear_blocks(self, blocks: Tensor) -> None:
        """Overwrite blocks that may hold what is not finite."""
        for states in self._states():
            states[blocks] = 0

    def _states(self) -> list[Tensor]:
        """Return the keys and values of every layer that has any."""
        ready = [layer for layer in self.paged_layers if layer.is_initialized]
        return [states for layer in ready for states in (layer.keys, layer.values)]


def _grown(states: Tensor, capacity: int) -> Tensor:
    larger = states.new_zeros(capacity, *states.shape[1:])
    larger[: len(states)] = states
    return larger
