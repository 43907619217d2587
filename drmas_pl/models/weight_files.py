"""Weights in the files of a checkpoint, looked at one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from drmas_pl.models.shard_files import each_weight, has_shards


def find_non_finite(folder: Path) -> str | None:
    """Name the first tensor below ``folder`` that holds NaN or infinity; None where there is none.

    Args:
        folder: Holds safetensors files or shares of a sharded model.

    Raises:
        OSError: A file cannot be read.
    """
    return next((name for name, tensor in _weights(folder) if not _is_finite(tensor)), None)


def _weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                yield name, tensors.get_tensor(name)
    if has_shards(folder):
        yield from each_weight(folder)


def _is_finite(tensor: Tensor) -> bool:
    """Tell whether every number is finite; types of one byte are taken to be."""
    return not tensor.is_floating_point() or tensor.element_size() == 1 or bool(torch.isfinite(tensor).all())
