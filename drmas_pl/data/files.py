"""Find and read the files that tasks and trajectories come from, row by row, each row with its place for error messages.

JSON Lines and Parquet are understood; ``embedded:<task>/<split>`` names a file that ships with the package.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from drmas_pl.errors import DataError

EMBEDDED: Final = "embedded:"
JSON_LINES: Final = (".jsonl", ".ndjson", ".json")
PARQUET: Final = (".parquet", ".pq")


class SourceRow(NamedTuple):
    """One record of a file.

    Attributes:
        place: File and line (or row), counted from 1.
        values: The record's columns.
    """

    place: str
    values: dict[str, Any]


def locate(path: str | os.PathLike[str]) -> Path:
    """Return the existing file that ``path`` means.

    Args:
        path: A local file, or ``embedded:search/train`` for one that ships with the package.

    Raises:
        DataError: There is no such file; the message lists the nearest names that exist.

    >>> locate("embedded:search/train").name
    'train.jsonl'
    """
    text = os.fspath(path)
    if text.startswith(EMBEDDED):
        return _locate_embedded(text)
    file = Path(text).expanduser()
    if file.is_dir():
        raise DataError(
            f"expected a file, got the folder {text}; name one of its files: {_listing(_names(file))}"
        )
    if file.exists():
        return file
    parent = file.parent
    if not parent.is_dir():
        while not parent.is_dir():
            parent = parent.parent
        raise DataError(
            f"no file {text}: its folder does not exist; {parent} does and holds {_listing(_names(parent))}"
        )
    raise DataError(f"no file {text}; nearest in its folder: {_nearest(file.name, _names(parent))}")


def read_rows(file: Path) -> Iterator[SourceRow]:
    """Read records one at a time.

    Args:
        file: A JSON Lines file (``.jsonl``, ``.ndjson``, ``.json``; blank lines are skipped) or a Parquet file.

    Raises:
        DataError: The suffix is unknown, or the file cannot be read as what its suffix says.
    """
    if file.suffix in JSON_LINES:
        return _read_json_lines(file)
    if file.suffix in PARQUET:
        return _read_parquet(file)
    raise DataError(
        f"{file}: expected a suffix {', '.join(JSON_LINES + PARQUET)}, got {file.suffix or 'none'}; convert or rename the file"
    )


def parse_line(line: bytes, place: str) -> dict[str, Any]:
    """Decode one line that holds one JSON object.

    Args:
        line: Its bytes.
        place: Where it stands, for the error message.

    Raises:
        DataError: The line is not UTF-8, not JSON, not an object, or holds half of a surrogate pair.

    >>> parse_line(b'{"question": "1 + 1?"}', "a.jsonl, line 1")
    {'question': '1 + 1?'}
    """
    try:
        value = json.loads(line.rstrip().decode("utf-8-sig"))
        if b"\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: expected Unicode text, got half of a surrogate pair; write the character itself"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: expected UTF-8, got byte {line[error.start]:#04x}; save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        remedy = (
            "write one object a line instead of one array"
            if line.lstrip().startswith(b"[")
            else "fix or remove the line"
        )
        raise DataError(
            f"{place}: expected one JSON object, got {_cut(line)} ({error.msg} at column {error.colno}); {remedy}"
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{place}: expected a JSON object, got {_cut(line)}; write one object with named columns a line"
        )
    return value


def write_json_lines(path: str | os.PathLike[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, all or nothing: the file appears, or is replaced, only when every row is written.

    Args:
        path: Where to; missing folders are made.
        rows: JSON-like records.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            for row in rows:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _read_json_lines(file: Path) -> Iterator[SourceRow]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                place = f"{file}, line {number}"
                yield SourceRow(place, parse_line(line, place))


def _read_parquet(file: Path) -> Iterator[SourceRow]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    number = 0
    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    yield SourceRow(f"{file}, row {number}", values)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: expected a Parquet file, got an error after row {number} ({_cut(str(error))}); write it anew"
        ) from error


def _locate_embedded(text: str) -> Path:
    name = text.removeprefix(EMBEDDED)
    root = Path(str(resources.files("drmas_pl"))) / "embedded"
    known = sorted(
        str(file.relative_to(root).with_suffix("")) for file in root.glob("*/*.jsonl") if _holds_tasks(file)
    )
    if name not in known:
        raise DataError(
            f"no embedded tasks named {name!r}; there are {_listing([EMBEDDED + each for each in known])}"
        )
    return root / f"{name}.jsonl"


def _holds_tasks(file: Path) -> bool:
    """Tell tasks from passages by the columns of the first row."""
    first = next(_read_json_lines(file), SourceRow("", {}))
    return "question" in first.values or "prompt" in first.values


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))


def _nearest(name: str, names: list[str]) -> str:
    return _listing(difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names)


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:8]) or "nothing"
    return f"{shown}, … ({len(names)} in all)" if len(names) > 8 else shown


def _cut(value: bytes | str) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    text = " ".join(text.split())
    return repr(text if len(text) <= 60 else f"{text[:59]}…")
