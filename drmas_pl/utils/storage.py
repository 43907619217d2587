"""One sentence for a disk that is full or a folder that cannot be written, whichever library notices it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drmas_pl.errors import StorageError


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Say what was being written where if that fails; other errors pass.

    Args:
        what: What it is, such as ``the checkpoint``.
        path: Where it goes.

    Raises:
        StorageError: It cannot be written.

    >>> with writing("the metrics", Path("/dev/full")), open("/dev/full", "w") as file:
    ...     _ = file.write("1")
    Traceback (most recent call last):
    drmas_pl.errors.StorageError: the metrics cannot be written to /dev/full: No space left on device; make room there, or make it writable
    """
    try:
        yield
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise StorageError(
            f"{what} cannot be written to {path}: {reason}; make room there, or make it writable"
        ) from error


def _reason(error: Exception) -> str | None:
    """Return why something could not be written; None for errors of another kind."""
    if isinstance(error, OSError) and error.errno is not None:
        return None if isinstance(error, (ConnectionError, TimeoutError)) else error.strerror
    text = str(error)
    # tokenizers and safetensors, which are written in Rust, say it in their own words
    if type(error).__name__ == "SafetensorError" or "(os error " in text:
        return text
    # what torch.save makes of a write that failed: it only knows the position in its archive
    if "inline_container.cc" in text or "PytorchStreamWriter" in text:
        return "not all of it could be written"
    return None
