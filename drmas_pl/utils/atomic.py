"""Writing a file so that readers see the old or the new content, never a part, whenever the process or the machine stops.

A new file is written beside its name, flushed to the disk and renamed. A symbolic link stays: the file that it points to is replaced.
What is no regular file, such as ``/dev/stdout``, ``/dev/full`` or a named pipe, is written to and never replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

_OUTPUTS: Final = (Path("/dev/stdout"), Path("/dev/stderr"))
_DESCRIPTORS: Final = (Path("/dev/fd"), Path("/proc/self/fd"))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Yield a text stream whose content takes the place of a file when the block ends; nothing changes if it raises.

    Args:
        path: The file; missing folders are made.

    Raises:
        OSError: It cannot be written.
    """
    target = Path(path)
    if _is_stream(target):
        with target.open("a", encoding="utf-8") as stream:
            yield stream
        return
    file = Path(os.path.realpath(target))
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".writing-{os.getpid()}-{file.name}")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    flush_folder(file.parent)


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Replace a small text file, see :func:`replacing`."""
    with replacing(path) as stream:
        stream.write(text)


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the file system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:  # network file systems may refuse
        return
    finally:
        os.close(handle)


def _is_stream(path: Path) -> bool:
    """Tell whether a path is a device, pipe or open file of this process, whose name belongs to others."""
    if path in _OUTPUTS or path.parent in _DESCRIPTORS:
        return True
    return path.exists() and not path.is_file() and not path.is_dir()
