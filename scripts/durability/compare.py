"""What of two run folders must be the same: weights, optimizer states, metrics and trajectories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_FINAL: Final = ("summary.json", "plot.png", "report.html", "config.yaml", "metrics.jsonl")
_LEFTOVERS: Final = (".writing-*", ".replaced-*", ".deleted-*", "run.lock")


def differences(found: Path, expected: Path) -> list[str]:
    """Name what differs between two finished runs."""
    missing = [f"{name} is missing" for name in _FINAL if not (found / name).is_file()]
    return [*missing, *leftovers(found), *_different(found, expected)]


def leftovers(folder: Path) -> list[str]:
    """Name what a run that has ended may not leave behind."""
    return [
        f"leftover {path.relative_to(folder)}"
        for pattern in _LEFTOVERS
        for path in folder.rglob(pattern)
        if path.is_dir() or path.is_file()
    ]


def _different(found: Path, expected: Path) -> Iterator[str]:
    try:
        if _metrics(found) != _metrics(expected):
            yield "metrics differ"
        if _trajectories(found) != _trajectories(expected):
            yield "trajectories differ"
        yield from _checkpoint_differences(_last(found), _last(expected))
    except (OSError, ValueError, KeyError) as error:
        yield f"cannot be compared: {error}"


def _metrics(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in record.items() if not name.startswith("time/")} for record in records
    ]


def _trajectories(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((folder / "trajectories").glob("*.jsonl"))}


def _last(folder: Path) -> Path:
    checkpoints = folder / "checkpoints"
    return checkpoints / (checkpoints / "last").read_text().strip()


def _checkpoint_differences(found: Path, expected: Path) -> Iterator[str]:
    """Compare files by content; optimizer states by their tensors, since their files hold times."""
    import torch

    names = [
        {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        for folder in (found, expected)
    ]
    if names[0] != names[1]:
        yield f"files of the checkpoint differ: {sorted(names[0] ^ names[1])[:3]}"
        return
    for name in sorted(names[0] - {"manifest.json"}):
        first, second = found / name, expected / name
        if name.endswith(".pt"):
            if not _equal(*(torch.load(path, weights_only=True) for path in (first, second))):
                yield f"{name} differs"
        elif first.read_bytes() != second.read_bytes():
            yield f"{name} differs"
    if _state(found) != _state(expected):
        yield "state differs"


def _state(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint says of the run, without what the clock decides."""
    return {**json.loads((checkpoint / "manifest.json").read_text())["state"], "seconds_before": None}


def _equal(first: Any, second: Any) -> bool:
    import torch

    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(first == second)
