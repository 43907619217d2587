"""Keys and values of a decode batch: prompts once each, responses once per row, in memory that is kept between batches.

All prompts end at the same column (they are padded on the left), so a step writes one column and reads a view: nothing is
concatenated. Rows that split or close up are moved in place, and only their responses need to move.

Legend: P prompts, W prompt columns, R rows, T response columns, H key-value heads, D head size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class BufferPool:
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
            # both references to the old buffer go before the new one is made, so that the two never exist side by side
            self._flat.pop(name, None)
            flat = None
            # zeros and not torch.empty, whose content may be NaN
            flat = torch.zeros(size, dtype=like.dtype, device=like.device)
            self._flat[name] = flat
        return flat[:size].view(shape)

    def release(self) -> None:
        """Free every buffer."""
        self._flat.clear()


class Cursor:
    """What the running forward pass writes; shared by all layers.

    Attributes:
        rows: Prompts while prefilling; the first rows while decoding.
        columns: While prefilling, how many of the last prompt columns are attended to.
        queries: While prefilling, how many of the last prompt columns are written.
        step: Response column while decoding; -1 while prefilling.
        prompt: (R,) prompt of each row while decoding.
        joined: Whether attention wants prompt and response in one tensor.
    """

    def __init__(self) -> None:
        self.rows: Tensor | slice = slice(0)
        self.columns = 0
        self.queries = 0
        self.step = -1
        self.prompt: Tensor | None = None
        self.joined = True


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer.

    Args:
        name: Name of this layer's response buffers in ``buffers``.
        prompt_name: Name of its prompt buffers.
        prompts: Number of prompts.
        width: Number of prompt columns.
        rows: Largest number of rows.
        length: Largest number of response columns.
        cursor: What the forward pass writes.
        buffers: Where keys and values are kept.
        dtype: Type to keep keys and values in; None keeps the model's.
    """

    is_sliding = False
    is_compileable = False
    prompt_keys: Tensor
    prompt_values: Tensor
    response_keys: Tensor
    response_values: Tensor

    def __init__(
        self,
        name: str,
        prompt_name: str,
        *,
        prompts: int,
        width: int,
        rows: int,
        length: int,
        cursor: Cursor,
        buffers: BufferPool,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.names = {"prompt": prompt_name, "response": name}
        self.cursor = cursor
        self.buffers = buffers
        self.kept_dtype = dtype
        self.sizes = {"prompt": (prompts, width), "response": (rows, length)}
        self.all_prompts: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Fetch the buffers, now that the shape of the states is known."""
        for part, (count, columns) in self.sizes.items():
            for kind, states in (("keys", key_states), ("values", value_states)):
                # (P, H, W, D) or (R, H, T, D)
                shape = (count, states.shape[1], columns, states.shape[3])
                like = states if self.kept_dtype is None else states.new_empty(0, dtype=self.kept_dtype)
                buffer = self.buffers.take(f"{self.names[part]}.{part}_{kind}", shape, like)
                setattr(self, f"{part}_{kind}", buffer)
        # kept beside prompt_keys and prompt_values, which keep_prompts narrows to the prompts that still have samples
        self.all_prompts = (self.prompt_keys, self.prompt_values)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new columns and return what the queries may attend to: all of it, or the response alone."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.cursor.step < 0:
            return self._prefill(key_states, value_states)
        return self._decode(key_states, value_states)

    def _prefill(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        at = self.cursor
        width = self.sizes["prompt"][1]
        # assignment to a slice converts the type by itself, assignment to a tensor of indices does not
        self.prompt_keys[at.rows, :, width - at.queries :] = keys.to(self.prompt_keys.dtype)
        self.prompt_values[at.rows, :, width - at.queries :] = values.to(self.prompt_values.dtype)
        if at.columns == at.queries:
            return keys, values
        # some columns were computed earlier: queries attend to those as well
        seen_keys = self.prompt_keys[at.rows, :, width - at.columns :]
        seen_values = self.prompt_values[at.rows, :, width - at.columns :]
        return seen_keys.to(keys.dtype), seen_values.to(values.dtype)

    def _decode(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        at = self.cursor
        self.append(key_states[:, :, 0], value_states[:, :, 0])
        keys, values = self.response()
        if not at.joined:
            return keys, values
        # a copy of the prompt for every row, (R, H, W + t, D), which attention that splits does not need
        joined_keys = torch.cat([self.prompt_keys[at.prompt], keys], dim=2)
        joined_values = torch.cat([self.prompt_values[at.prompt], values], dim=2)
        return joined_keys, joined_values

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write the response column that the cursor names, (R, H, D) each, of a layer that has been prefilled."""
        at = self.cursor
        self.response_keys[at.rows, :, at.step] = keys
        self.response_values[at.rows, :, at.step] = values

    def response(self) -> tuple[Tensor, Tensor]:
        """Return (R, H, step + 1, D) keys and values of the responses."""
        rows = self.cursor.rows
        stop = self.cursor.step + 1
        return self.response_keys[rows, :, :stop], self.response_values[rows, :, :stop]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return how many columns are attended to, and the first one's position."""
        return self.get_seq_length() + (self.cursor.queries if self.cursor.step < 0 else 1), 0

    def get_seq_length(self) -> int:
        """Return how many columns precede the queries."""
        at = self.cursor
        return at.columns - at.queries if at.step < 0 else self.sizes["prompt"][1] + at.step

    def get_max_length(self) -> int:
        """Return the number of columns."""
        return self.sizes["prompt"][1] + self.sizes["response"][1]

    # the name of get_max_length before Transformers 5
    get_max_cache_shape = get_max_length


class RowCache(Cache):
    """A Transformers cache for one decode batch.

    Args:
        layers: Number of decoder layers.
        prompts: Number of distinct prompts.
        width: Length of the longest prompt.
        rows: Largest number of rows.
        length: Largest number of response columns.
        buffers: Where keys and values are kept.
        buffer_set: Which set of prompt buffers to use; a cache that copies prefixes of another one needs a different set.
        dtype: Type to keep keys and values in; None keeps the model's, and is needed where prompts and responses are joined.
    """

    def __init__(
        self,
        layers: int,
        *,
        prompts: int,
        width: int,
        rows: int,
        length: int,
        buffers: BufferPool,
        buffer_set: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.cursor = Cursor()
        self.width = width
        sizes: dict[str, Any] = {
            "prompts": prompts,
            "width": width,
            "rows": rows,
            "length": length,
            "dtype": dtype,
        }
        self.row_layers = [
            RowLayer(str(layer), f"{layer}.{buffer_set}", **sizes, cursor=self.cursor, buffers=buffers)
            for layer in range(layers)
        ]
        super().__init__(layers=list(self.row_layers))
        self.updated: RowLayer | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new columns of a layer, and remember which layer it was."""
        self.updated = self.row_layers[layer_idx]
        return self.updated.update(key_states, value_states)

    @property
    def prompt_cells(self) -> int:
        """Number of prompt tokens, padding included, that are held."""
        return math.prod(self.row_layers[0].sizes["prompt"])

    def copy_prefixes(
        self, other: RowCache, prompt: tuple[Tensor, Tensor], column: tuple[Tensor, Tensor]
    ) -> None:
        """Copy what another cache holds of the same tokens at the same positions.

        Args:
            other: A filled cache with other prompt buffers.
            prompt: (N,) prompt of each token there and here.
            column: (N,) its column there and here.
        """
        for layer, source in zip(self.row_layers, other.row_layers):
            if not layer.is_initialized:
                layer.lazy_initialization(*source.all_prompts)
            # positions are equal, so the rotary embedding in the keys is right here too; columns differ with the padding
            for mine, theirs in zip(layer.all_prompts, source.all_prompts):
                mine[prompt[1], :, column[1]] = theirs[prompt[0], :, column[0]]

    def open_prefill(self, rows: Tensor | slice, *, columns: int, queries: int) -> None:
        """Let the next forward pass fill the last ``queries`` columns of prompts ``rows``, seeing the last ``columns``."""
        at = self.cursor
        at.rows = rows
        at.columns = columns
        at.queries = queries
        at.step = -1

    def open_decode(self, prompt: Tensor, step: int, *, joined: bool) -> None:
        """Let the next forward pass append response column ``step``.

        Args:
            prompt: (R,) prompt of each row.
            step: Column to write.
            joined: Whether attention wants prompt and response in one tensor.
        """
        at = self.cursor
        at.rows = slice(len(prompt))
        at.step = step
        at.prompt = prompt
        at.joined = joined

    def copy_rows(self, source: Tensor, target: Tensor, columns: int) -> None:
        """Copy the first ``columns`` response columns of rows ``source`` (M,) onto rows ``target`` (M,); they must differ."""
        for layer in self.row_layers:
            for states in (layer.response_keys, layer.response_values):
                states[target, :, :columns] = states[source, :, :columns]

    def keep_prompts(self, kept: Tensor) -> None:
        """Decode with the prompts ``kept``, (P',), alone; later caches can still copy from the others."""
        for layer in self.row_layers:
            layer.prompt_keys = layer.prompt_keys[kept]
            layer.prompt_values = layer.prompt_values[kept]
