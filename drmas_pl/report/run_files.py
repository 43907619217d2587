"""The files of a run folder as far as they are there: also of a run that crashed or has not ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drmas_pl.utils.foreign_files import parse_json, parse_yaml, read_text

MARKS = ("summary.json", "metrics.jsonl", "config.yaml")
_CALLS = re.compile(r"(?:train|validation|test)/([^/]+)/calls")


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What a run folder holds.

    Attributes:
        path: The folder.
        config: Content of ``config.yaml``; empty without one.
        records: Lines of ``metrics.jsonl``, one for each iteration and validation; a line cut by a crash is left out.
        summary: Content of ``summary.json``; empty while the run goes and after a crash.
        trajectories: Files of recorded trajectories, by phase and iteration.
        failures: Last lines of ``failures.log``.
    """

    path: Path
    config: dict[str, Any]
    records: tuple[dict[str, Any], ...]
    summary: dict[str, Any]
    trajectories: tuple[Path, ...]
    failures: str

    @property
    def name(self) -> str:
        """Name of the folder, after its parent's."""
        path = self.path.resolve()
        return f"{path.parent.name}/{path.name}"

    @property
    def finished(self) -> bool:
        """Whether the run has ended by itself."""
        return bool(self.summary)

    @property
    def agents(self) -> tuple[str, ...]:
        """Agents in the order of the team, or as metrics name them."""
        roles = self.setting("agents.roles")
        if isinstance(roles, dict) and roles:
            return tuple(roles)
        names = (match[1] for record in self.records for name in record if (match := _CALLS.fullmatch(name)))
        return tuple(dict.fromkeys(names))

    @property
    def iteration(self) -> int:
        """Last iteration of which something was recorded."""
        return max((record["iteration"] for record in self.records), default=0)

    def setting(self, key: str, default: Any = None) -> Any:
        """Return the value under a dotted key of the configuration."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    @property
    def planned(self) -> int | None:
        """Iterations that the configuration asks for; None where it asks for epochs, whose length a run's files do not tell."""
        if self.setting("trainer.max_epochs") is not None:
            return None
        found: int | None = self.setting("trainer.max_iterations")
        return found

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return iterations and values of one metric; of an iteration that a resumed run repeated the newer value."""
        values = {
            record["iteration"]: record[name] for record in self.records if _is_number(record.get(name))
        }
        return sorted(values.items())


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run."""
    return any((folder / mark).is_file() for mark in MARKS)


def find_run_folders(folder: Path) -> list[Path]:
    """Return ``folder`` if it is a run, else the runs that lie directly in it."""
    if is_run(folder):
        return [folder]
    if not folder.is_dir():
        return []
    return [inner for inner in sorted(folder.iterdir()) if inner.is_dir() and is_run(inner)]


def read_run(folder: Path) -> RunFiles:
    """Read what is there; files that are missing or damaged count as empty."""
    return RunFiles(
        path=folder,
        config=_read_config(folder / "config.yaml"),
        records=tuple(_read_records(folder / "metrics.jsonl")),
        summary=_read_summary(folder / "summary.json"),
        trajectories=tuple(
            file for file in sorted((folder / "trajectories").glob("*.jsonl")) if file.is_file()
        ),
        failures="\n".join(_read_text(folder / "failures.log").splitlines()[-40:]),
    )


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key; empty mappings and lists are leaves.

    >>> flatten({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'a.c': {}, 'd': [2]}
    """
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree} if prefix else {}
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def mean(values: Sequence[float]) -> float:
    """Return the average of at least one number."""
    return sum(values) / len(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = parse_yaml(_read_text(path))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = parse_json(_read_text(path))
    except ValueError:
        return {}
    return summary if isinstance(summary, dict) else {}


def _read_records(path: Path) -> list[dict[str, Any]]:
    records = []
    for line in _read_text(path).splitlines():
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("iteration"), int):
            records.append(record)
    return records
