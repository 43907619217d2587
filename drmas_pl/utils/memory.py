"""What the C library does with memory that tensors on CPU no longer need."""

from __future__ import annotations

import ctypes
import sys

# parameters of mallopt(3)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**30


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for its next allocations instead of giving it back to the operating system.

    By default glibc returns large blocks at once, so that every large tensor is built of new pages, which the system clears first:
    up to a tenth of the CPU time of training. What this costs: the process stays as large as it has once been.

    Returns:
        Whether the C library took the setting; only glibc does.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, _LARGEST) == 1 for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)
    )
