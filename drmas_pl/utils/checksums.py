"""Checksums of all files below a folder, which notice a single flipped bit, and having these files on the disk.

They protect against damage, not against people: who can change a file can change its checksum as well.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drmas_pl.utils.atomic import flush_folder

_CHUNK: Final = 1 << 22
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class FileMark:
    """What identifies the content of a file.

    Attributes:
        size: Its length in bytes.
        sha256: Its SHA-256 in hexadecimal digits, as ``sha256sum`` prints it.
    """

    size: int
    sha256: str


def seal_files(folder: Path) -> dict[str, FileMark]:
    """Have every file and folder below ``folder`` on the disk, and return what identifies the files, by relative name.

    Raises:
        OSError: A file cannot be read or flushed.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_THREADS) as threads:
        marks = list(threads.map(_sealed, files))
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        flush_folder(path)
    return {file.relative_to(folder).as_posix(): mark for file, mark in zip(files, marks, strict=True)}


def find_damage(folder: Path, marks: Mapping[str, FileMark], *, content: bool = True) -> str | None:
    """Say what is wrong with the first file that is not what it was; None where all are.

    Args:
        folder: Where the files are.
        marks: What identifies them, by relative name.
        content: Whether to read them; otherwise only their lengths are compared.
    """
    damages: Iterator[str | None] = (
        _damage(folder, name, mark, content=False) for name, mark in marks.items()
    )
    found = next(filter(None, damages), None)
    if found is not None or not content:
        return found
    with ThreadPoolExecutor(_THREADS) as threads:
        read = threads.map(lambda item: _damage(folder, *item, content=True), marks.items())
        return next(filter(None, read), None)


def _damage(folder: Path, name: str, mark: FileMark, *, content: bool) -> str | None:
    file = folder / name
    try:
        if not file.is_file():
            return f"{name} is missing"
        size = file.stat().st_size
        if size != mark.size:
            return f"{name} has {size} bytes instead of {mark.size}"
        if content and _digest(file) != mark.sha256:
            return f"{name} is not what was written"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None


def _sealed(file: Path) -> FileMark:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    return FileMark(file.stat().st_size, _digest(file))


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
