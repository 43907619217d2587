"""Was memory really given back? An answer with status 200 is no proof, free memory is."""

from __future__ import annotations

import torch

from drmas_pl.errors import EngineError


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a GPU, whoever uses the rest; None for the CPU, where nothing is released."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def check_released(before: int | None, after: int | None) -> int:
    """Return how many bytes a release has freed.

    Args:
        before: Free bytes before it; None when it cannot be measured.
        after: Free bytes after it.

    Raises:
        EngineError: Nothing was freed.

    >>> check_released(1 << 30, 5 << 30) >> 30
    4
    >>> check_released(None, None)
    0
    """
    if before is None or after is None:
        return 0
    if after <= before:
        raise EngineError(
            f"the server says that it released its memory, but free memory went from {before >> 20} MiB to {after >> 20} MiB; if it is not "
            "on the trainer's GPU set engine.release=nothing, else start it with --enable-memory-saver"
        )
    return after - before
