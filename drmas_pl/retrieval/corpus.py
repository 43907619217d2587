"""A passage collection on disk: one JSON object per line, ``{"id": …, "contents": "\\"Title\\"\\ntext"}``.

The file is memory-mapped and addressed by line offsets, so that millions of passages cost eight bytes each.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from drmas_pl.errors import DataError

EMBEDDED: Final = "embedded:"
_BLOCK: Final = 1 << 16
_BLOCKS: Final = 64


class Entry(NamedTuple):
    """A passage as it stands in the corpus."""

    id: str
    title: str
    text: str


def split_contents(contents: str) -> tuple[str, str]:
    """Split ``contents`` into title and text; without a quoted first line the title is empty.

    >>> split_contents('"Lyon"\\nIt is a city.')
    ('Lyon', 'It is a city.')
    >>> split_contents("No title here")
    ('', 'No title here')
    """
    first, newline, rest = contents.partition("\n")
    if newline and len(first) >= 2 and first[0] == first[-1] == '"':
        return first[1:-1], rest
    return "", contents


class Corpus:
    """Random access to the passages of a JSON-lines file.

    Args:
        path: The file, or ``embedded:search/corpus`` for the one that ships with the package.
        offsets: Start of each line plus the file's size, int64 ``(lines + 1,)``; found by scanning when not given.

    Raises:
        DataError: The file is missing or empty.
    """

    def __init__(self, path: str | Path, *, offsets: np.ndarray | None = None) -> None:
        self.path = _locate(path)
        if not self.path.is_file() or self.path.stat().st_size == 0:
            raise DataError(
                f"corpus must be a non-empty JSON-lines file, got {self.path}; build one with tools/prepare_data.py corpus"
            )
        with self.path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.offsets = _scan(self._map) if offsets is None else offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Entry:
        """Read passage ``index``.

        Raises:
            DataError: The line is not an object with the text fields ``id`` and ``contents``.
        """
        line = self._map[int(self.offsets[index]) : int(self.offsets[index + 1])]
        try:
            row: Any = json.loads(line)
            title, text = split_contents(row["contents"])
            return Entry(str(row["id"]), title, text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f'{self.path.name} line {index + 1} must be {{"id": …, "contents": text}}: {error!r}'
            ) from error

    def __iter__(self) -> Iterator[Entry]:
        return (self[index] for index in range(len(self)))

    def fingerprint(self) -> str:
        """Hash the size and up to 64 evenly spaced blocks: all of a small file, a sample of one with millions of passages."""
        size = len(self._map)
        digest = hashlib.sha256(str(size).encode())
        for start in np.unique(np.linspace(0, max(size - _BLOCK, 0), _BLOCKS, dtype=np.int64)):
            digest.update(self._map[int(start) : int(start) + _BLOCK])
        return digest.hexdigest()[:32]

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def _locate(path: str | Path) -> Path:
    text = str(path)
    if not text.startswith(EMBEDDED):
        return Path(path)
    return Path(str(resources.files("drmas_pl") / "embedded" / f"{text.removeprefix(EMBEDDED)}.jsonl"))


def _scan(data: mmap.mmap) -> np.ndarray:
    """Find where each non-empty line starts."""
    starts = []
    position = 0
    while position < len(data):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end + 1
        if data[position:end].strip():
            starts.append(position)
        position = end
    return np.array([*starts, len(data)], dtype=np.int64)
