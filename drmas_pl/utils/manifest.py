"""What a checkpoint says about itself, and whether that makes sense.

A manifest may be damaged, or written by anybody: every entry is checked before it is used, and names that become paths are names.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any, Final

from drmas_pl.errors import CheckpointError
from drmas_pl.utils.checksums import FileMark
from drmas_pl.utils.validation import shown

FORMAT: Final = 2
# the first one had neither checksums nor the mark of the run
READABLE: Final = (1, FORMAT)
MANIFEST: Final = "manifest.json"
# Entry with the checksum of all others.
DIGEST: Final = "digest"
_NAME: Final = re.compile(r"[^/\\\x00-\x1f]{1,200}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says about itself.

    Attributes:
        iteration: Completed iterations.
        seed: Run seed.
        agents: Worker group by agent name.
        templates: Hash of each agent's prompt template.
        data: What decides the run's tasks and prompts: fingerprints by name.
        state: Further trainer state: evaluations so far and counters.
        format: Version of this layout.
        run_id: Mark of the run that wrote it; None in checkpoints of earlier versions.
        files: What identifies every other file of the checkpoint, by relative name; empty in checkpoints of earlier versions.
    """

    iteration: int
    seed: int
    agents: Mapping[str, str]
    templates: Mapping[str, str]
    data: Mapping[str, str]
    state: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT
    run_id: str | None = None
    files: Mapping[str, FileMark] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the content of ``manifest.json``, which ends with a checksum of itself."""
        return seal_record(asdict(self))


def seal_record(record: Mapping[str, Any]) -> str:
    """Return the text of a manifest's entries and their checksum."""
    plain = json.loads(json.dumps({name: value for name, value in record.items() if name != DIGEST}))
    return json.dumps({**plain, DIGEST: _digest(plain)}, indent=1) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest.

    Raises:
        CheckpointError: It is missing, damaged or of another format.
    """
    file = path / MANIFEST
    try:
        # a named pipe would be waited for
        if file.exists() and not file.is_file():
            raise ValueError("it is no file")
        record = json.loads(file.read_text())
        if not isinstance(record, dict):
            raise ValueError(f"it holds {shown(record)}")
        if type(record.get("format")) is int and record["format"] not in READABLE:
            raise CheckpointError(
                f"checkpoint {path} has format {record['format']}, expected {FORMAT}; use the version that wrote it"
            )
        return _checked(record)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read ({MANIFEST}: {error})") from error


def _checked(record: dict[str, Any]) -> Manifest:
    """Build a manifest from entries that make sense.

    Raises:
        ValueError: One does not.
    """
    digest = record.pop(DIGEST, None)
    known = {item.name for item in fields(Manifest)}
    unknown = sorted(record.keys() - known)
    if unknown:
        raise ValueError(f"entry {unknown[0]!r} is unknown")
    for name, (is_right, expected) in {**_ENTRIES, **_NEW_ENTRIES}.items():
        if name not in record and (name == "state" or name in _NEW_ENTRIES):
            continue
        if name not in record:
            raise ValueError(f"{name} is missing")
        if not is_right(record[name]):
            raise ValueError(f"{name} must be {expected}, got {shown(record[name])}")
    if record["templates"].keys() != record["agents"].keys():
        raise ValueError("agents and templates name different agents")
    _check_state(record.get("state", {}), record["iteration"])
    if record["format"] == FORMAT and not record.get("files"):
        raise ValueError("files is empty")
    if record["format"] == FORMAT and digest != _digest(record):
        raise ValueError("it is not what was written")
    marks = {name: FileMark(**mark) for name, mark in record.get("files", {}).items()}
    return Manifest(**{**record, "files": marks})


def _check_state(state: Mapping[str, Any], iteration: int) -> None:
    """Raise where an entry of the trainer's state cannot be gone on with."""
    for name, value in state.items():
        if name not in STATE:
            raise ValueError(f"state.{name} is unknown")
        is_right, expected = STATE[name]
        if not is_right(value):
            raise ValueError(f"state.{name} must be {expected}, got {shown(value)}")
    if state.get("iteration", iteration) != iteration:
        raise ValueError(f"state.iteration must be {iteration}, got {state['iteration']}")
    if state.get("best_at") is not None and state.get("best") is None:
        raise ValueError("state.best is missing")


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_name(value: Any) -> bool:
    """Tell whether a text can be the name of a folder, and nothing else."""
    return isinstance(value, str) and bool(_NAME.fullmatch(value)) and value not in (".", "..")


def _are_names(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(_is_name, (*value, *value.values())))


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _are_evaluations(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and _is_count(item.get("iteration")) for item in value
    )


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_file(name, mark) for name, mark in value.items())


def _is_file(name: str, mark: Any) -> bool:
    parts = PurePosixPath(name).parts
    inside = bool(parts) and not name.startswith("/") and ".." not in parts and "\x00" not in name
    fits = isinstance(mark, dict) and mark.keys() == {"size", "sha256"}
    return inside and fits and _is_count(mark["size"]) and isinstance(mark["sha256"], str)


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


_Rule = tuple[Callable[[Any], bool], str]
_ENTRIES: Final[Mapping[str, _Rule]] = {
    "iteration": (_is_count, "a whole number of at least 0"),
    "seed": (lambda value: type(value) is int, "a whole number"),
    "agents": (_are_names, "worker groups by agent name"),
    "templates": (_are_texts, "texts by agent name"),
    "data": (_are_texts, "texts by name"),
    "state": (lambda value: isinstance(value, dict), "a mapping"),
    "format": (lambda value: type(value) is int, "a whole number"),
}
_NEW_ENTRIES: Final[Mapping[str, _Rule]] = {
    "run_id": (_or_none(lambda value: isinstance(value, str)), "a text"),
    "files": (_are_files, "lengths and checksums by relative file name"),
}
STATE: Final[Mapping[str, _Rule]] = {
    "iteration": (_is_count, "a whole number of at least 0"),
    "evaluations": (_are_evaluations, "a list of scores with their iteration"),
    "best_at": (_or_none(_is_count), "a whole number of at least 0"),
    "best": (_or_none(_is_number), "a finite number"),
    "idle": (_is_count, "a whole number of at least 0"),
    "estimator": (lambda value: isinstance(value, dict), "a mapping"),
    "seconds_before": (lambda value: _is_number(value) and value >= 0, "a number of at least 0"),
}


def checkpoint_names(folder: Path) -> Iterator[Path]:
    """Yield folders that are called like checkpoints, newest first; links and files are none."""
    try:
        found = [path for path in folder.iterdir() if re.fullmatch(r"iteration-\d{6,}", path.name)]
    except OSError:
        return
    for path in sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True):
        if path.is_dir() and not path.is_symlink():
            yield path
