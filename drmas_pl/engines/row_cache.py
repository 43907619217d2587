"""Keys and values of a decode batch in memory that is allocated once.

All rows end at the same column (prompts are padded on the left), so a step writes one column and reads a view: nothing is
concatenated or copied. Rows that split or close up are moved in place.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class Region:
    """The part of the memory that the running forward pass writes: rows ``first:last``, columns ``start:stop``.

    Attributes:
        origin: First column the queries may attend to.
    """

    def __init__(self) -> None:
        self.first = self.last = self.origin = self.start = self.stop = 0


class Memory:
    """Buffers that are kept between batches, so that their pages are not requested and cleared for every one of them."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the buffer ``name`` in the given shape; its content is arbitrary but finite.

        Padding columns are read with weight 0, and 0 × NaN would not vanish.
        """
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size or flat.dtype != like.dtype or flat.device != like.device:
            # free the old buffer first
            self._flat.pop(name, None)
            flat = None
            self._flat[name] = flat = torch.zeros(size, dtype=like.dtype, device=like.device)
        return flat[:size].view(shape)

    def release(self) -> None:
        """Free every buffer."""
        self._flat.clear()


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, (rows, heads, columns, head size).

    Args:
        name: Name of this layer's buffers in ``memory``.
        rows: Number of rows.
        columns: Number of columns.
        region: What the forward pass writes; shared by all layers.
        memory: Where the buffers come from.
    """

    is_sliding = False
    is_compileable = False

    def __init__(self, name: str, *, rows: int, columns: int, region: Region, memory: Memory) -> None:
        super().__init__()
        self.name, self.rows, self.columns, self.region, self.memory = name, rows, columns, region, memory
        self.keys: Tensor
        self.values: Tensor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Fetch the buffers, now that the shape of the states is known."""
        for kind, states in (("keys", key_states), ("values", value_states)):
            shape = (self.rows, states.shape[1], self.columns, states.shape[3])
            setattr(self, kind, self.memory.take(f"{self.name}.{kind}", shape, states))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new columns and return all that the queries may attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        at = self.region
        self.keys[at.first : at.last, :, at.start : at.stop] = key_states
        self.values[at.first : at.last, :, at.start : at.stop] = value_states
        if at.origin == at.start:
            return key_states, value_states
        rows, columns = slice(at.first, at.last), slice(at.origin, at.stop)
        return self.keys[rows, :, columns], self.values[rows, :, columns]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return how many columns are attended to, and the first one's position."""
        return self.region.stop - self.region.origin, 0

    def get_seq_length(self) -> int:
        """Return how many columns precede the queries."""
        return self.region.start - self.region.origin

    def get_max_length(self) -> int:
        """Return the number of columns."""
        return self.columns

    # the name of get_max_length before Transformers 5
    get_max_cache_shape = get_max_length


class RowCache(Cache):
    """A Transformers cache over rows of fixed memory.

    Args:
        layers: Number of decoder layers.
        rows: Largest number of rows.
        columns: Prompt columns plus response columns.
        memory: Where the buffers come from.
    """

    def __init__(self, layers: int, *, rows: int, columns: int, memory: Memory) -> None:
        self.region = Region()
        self.row_layers = [RowLayer(str(layer), rows=rows, columns=columns, region=self.region, memory=memory) for layer in range(layers)]
        super().__init__(layers=list(self.row_layers))

    def open_prefill(self, first: int, last: int, *, start: int, stop: int) -> None:
        """Let the next forward pass fill columns ``start:stop`` of rows ``first:last``; nothing precedes them."""
        self._open(first, last, start, start, stop)

    def open_decode(self, rows: int, column: int) -> None:
        """Let the next forward pass append ``column`` to the first ``rows`` rows."""
        self._open(0, rows, 0, column, column + 1)

    def copy_rows(self, source: Tensor, target: Tensor, columns: int) -> None:
        """Copy the first ``columns`` columns of the rows ``source`` (M,) onto the rows ``target`` (M,), which must differ."""
        for layer in self.row_layers:
            layer.keys[target, :, :columns] = layer.keys[source, :, :columns]
            layer.values[target, :, :columns] = layer.values[source, :, :columns]

    def _open(self, first: int, last: int, origin: int, start: int, stop: int) -> None:
        region = self.region
        region.first, region.last, region.origin, region.start, region.stop = first, last, origin, start, stop
