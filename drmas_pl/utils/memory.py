"""Memory: what the C library does with what tensors on CPU no longer need, and one sentence for when there is too little."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from drmas_pl.errors import OutOfMemory

# parameters of mallopt(3)
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST = 2**30
# what allocators say that raise a plain RuntimeError
_WORDS: Final = ("can't allocate memory", "not enough memory", "out of memory", "unable to allocate")
ROLLOUT_REMEDY: Final = "lower rollout.max_concurrent, engine.max_batch_tokens or model.max_new_tokens, or set rollout.residency=one"
UPDATE_REMEDY: Final = (
    "lower update.micro_batch_tokens, or set update.activation_checkpointing=true or update.offload=all"
)


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


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error, or what it was raised from, is a failed allocation of Python, torch or numpy.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(ValueError("memory"))
    (True, False)
    """
    found: BaseException | None = error
    while found is not None:
        names = {kind.__name__ for kind in type(found).__mro__}
        if names & {"MemoryError", "OutOfMemoryError"}:
            return True
        if isinstance(found, RuntimeError) and any(words in str(found).lower() for words in _WORDS):
            return True
        found = found.__cause__
    return False


@contextmanager
def named_out_of_memory(what: str, remedy: str) -> Iterator[None]:
    """Say which part ran out of memory and which setting lowers its need; other errors pass.

    Args:
        what: The part, such as ``the update``.
        remedy: What to change.

    Raises:
        OutOfMemory: An allocation failed.
    """
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise OutOfMemory(f"{what} ran out of memory ({reason}); {remedy}") from error
