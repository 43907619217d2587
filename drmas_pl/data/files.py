"""Find and read the files that tasks and trajectories come from, row by row, each row with its place for error messages.

JSON Lines, CSV, Parquet and Arrow are understood, and folders of the Hugging Face library ``datasets``; ``embedded:<task>/<split>`` names a
file that ships with the package.
"""

from __future__ import annotations

import csv
import difflib
import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from drmas_pl.errors import DataError
from drmas_pl.utils.atomic import replacing
from drmas_pl.utils.foreign_files import parse_json

EMBEDDED: Final = "embedded:"
JSON_LINES: Final = (".jsonl", ".ndjson", ".json")
PARQUET: Final = (".parquet", ".pq")
ARROW: Final = (".arrow",)
CSV: Final = {".csv": ",", ".tsv": "\t"}
SUFFIXES: Final = (*JSON_LINES, *CSV, *PARQUET, *ARROW)
_SHARD: Final = re.compile(r"-\d{5}-of-\d{5}$")


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


def find_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the existing files that ``path`` means, in the order in which they are read.

    Args:
        path: What :func:`locate` takes; or a pattern with ``*``; or a folder with the files of one split: what ``datasets`` writes with
            ``save_to_disk``, a copy of a repository of the hub, or any folder of files with the same name up to a shard number.

    Raises:
        DataError: Nothing is there, or a folder holds several splits.

    >>> [file.name for file in find_files("embedded:search/train")]
    ['train.jsonl']
    """
    text = os.fspath(path)
    if text.startswith(EMBEDDED):
        return (locate(text),)
    found = Path(text).expanduser()
    if found.is_dir():
        return _files_of_folder(found)
    if not found.exists() and ("*" in found.name or "?" in found.name) and found.parent.is_dir():
        matches = sorted(found.parent.glob(found.name))
        if not matches:
            raise DataError(
                f"no file matches {text}; the folder holds {_nearest(found.name, _names(found.parent))}"
            )
        return tuple(matches)
    return (locate(path),)


def _files_of_folder(folder: Path) -> tuple[Path, ...]:
    """Return the data files of one split that lie in a folder, or in its only subfolder ``data``."""
    if (folder / "dataset_dict.json").is_file():
        splits = [name for name in _names(folder) if (folder / name).is_dir()]
        raise DataError(f"{folder} holds several splits; name one of them: {folder}/{{{','.join(splits)}}}")
    state = folder / "state.json"
    if state.is_file():
        try:
            return tuple(folder / entry["filename"] for entry in json.loads(state.read_text())["_data_files"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{state}: expected what datasets.Dataset.save_to_disk writes, got {error!r}; save the set anew"
            ) from error
    files = _data_files(folder) or _data_files(folder / "data")
    if not files:
        raise DataError(
            f"expected files with a suffix {', '.join(SUFFIXES)} in {folder}, got {_listing(_names(folder))}; name a file"
        )
    stems = sorted({(_SHARD.sub("", file.stem), file.suffix) for file in files})
    if len(stems) > 1:
        patterns = [f"{files[0].parent}/{glob.escape(stem)}*{suffix}" for stem, suffix in stems]
        raise DataError(f"the folder {folder} holds different files; name one of {_listing(patterns)}")
    return files


def _data_files(folder: Path) -> tuple[Path, ...]:
    if not folder.is_dir():
        return ()
    return tuple(folder / name for name in _names(folder) if Path(name).suffix in SUFFIXES)


def read_rows(file: Path) -> Iterator[SourceRow]:
    """Read records one at a time.

    Args:
        file: JSON Lines (``.jsonl``, ``.ndjson``, ``.json``; blank lines are skipped), CSV or TSV with a line of column names, Parquet or
            Arrow. Empty CSV cells are absent.

    Raises:
        DataError: The suffix is unknown, or the file cannot be read as what its suffix says.
    """
    if file.suffix in JSON_LINES:
        return _read_json_lines(file)
    if file.suffix in CSV:
        return _read_csv(file)
    if file.suffix in PARQUET:
        return _read_table(file, _parquet_batches)
    if file.suffix in ARROW:
        return _read_table(file, _arrow_batches)
    raise DataError(
        f"{file}: expected a suffix {', '.join(SUFFIXES)}, got {file.suffix or 'none'}; convert or rename the file"
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
        value = parse_json(line.rstrip().decode("utf-8-sig"))
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
    except ValueError as error:  # Python refuses to read whole numbers of more than some thousand digits
        raise DataError(
            f"{place}: expected one JSON object, got {_cut(str(error))}; write it as a text"
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
    with replacing(path) as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")


def _read_json_lines(file: Path) -> Iterator[SourceRow]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                place = f"{file}, line {number}"
                yield SourceRow(place, parse_line(line, place))


def _read_csv(file: Path) -> Iterator[SourceRow]:
    # Cells may hold whole documents; the module's own limit is 128 kB.
    csv.field_size_limit(2**31 - 1)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, delimiter=CSV[file.suffix], strict=True)
            for values in reader:
                place = f"{file}, line {reader.line_num}"
                if None in values or None in values.values():
                    raise DataError(
                        f"{place}: expected {len(reader.fieldnames or ())} cells, one for each column; quote cells that hold "
                        "separators or line breaks"
                    )
                yield SourceRow(place, {name: cell for name, cell in values.items() if cell != ""})
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: expected CSV in UTF-8, got {_cut(str(error))}; save the file anew"
        ) from error


def _read_table(file: Path, batches: Callable[[Path], Iterator[Any]]) -> Iterator[SourceRow]:
    import pyarrow as arrow

    number = 0
    try:
        for batch in batches(file):
            narrow = {field.name: field.type for field in batch.schema if _holds_narrow_floats(field.type)}
            for values in batch.to_pylist():
                number += 1
                for name, kind in narrow.items():
                    values[name] = _shortest(values[name], kind)
                yield SourceRow(f"{file}, row {number}", values)
    except (arrow.ArrowException, OSError) as error:
        kind = "a Parquet" if file.suffix in PARQUET else "an Arrow"
        raise DataError(
            f"{file}: expected {kind} file, got an error after row {number} ({_cut(str(error))}); write it anew"
        ) from error


def _parquet_batches(file: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as table:
        yield from table.iter_batches(batch_size=1024)


def _arrow_batches(file: Path) -> Iterator[Any]:
    """Read both of Arrow's formats; ``datasets`` writes streams."""
    import pyarrow as arrow

    with arrow.memory_map(str(file)) as source:
        try:
            reader = arrow.ipc.open_stream(source)
        except arrow.ArrowInvalid:
            file_reader = arrow.ipc.open_file(source)
            yield from map(file_reader.get_batch, range(file_reader.num_record_batches))
            return
        yield from reader


def _holds_narrow_floats(kind: Any) -> bool:
    """Tell whether an Arrow type has numbers of fewer than 64 bits in it."""
    if kind.num_fields:
        return any(_holds_narrow_floats(kind.field(index).type) for index in range(kind.num_fields))
    return str(kind) in ("float", "halffloat")


def _shortest(value: Any, kind: Any) -> Any:
    """Write narrow numbers as people do: 0.1 in 32 bits is 0.1, not the 64-bit number that is closest to its bits."""
    import numpy as np

    if value is None or not _holds_narrow_floats(kind):
        return value
    if isinstance(value, dict):
        return {name: _shortest(inner, kind.field(name).type) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shortest(inner, kind.value_type) for inner in value]
    return float(str(np.float16(value) if str(kind) == "halffloat" else np.float32(value)))


def _locate_embedded(text: str) -> Path:
    name = text.removeprefix(EMBEDDED)
    root = Path(str(resources.files("drmas_pl"))) / "embedded"
    known = sorted(
        str(file.relative_to(root).with_suffix("")) for file in root.glob("*/*.jsonl") if _holds_tasks(file)
    )
    if name not in known:
        raise DataError(
            f"no embedded tasks named {name!r}; there are {', '.join(EMBEDDED + each for each in known)}"
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
