"""Tasks and recorded turns: reading, splitting, scheduling. Names that need torch are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drmas_pl.data.readers import read_tasks
from drmas_pl.data.splits import check_disjoint, fingerprint, source_table

if TYPE_CHECKING:
    from drmas_pl.data.module import TaskDataModule
    from drmas_pl.data.recorded import (
        RecordedTurns,
        TrajectoryWriter,
        collate_rows,
        read_trajectories,
        write_trajectories,
    )

__all__ = [
    "read_tasks",
    "fingerprint",
    "check_disjoint",
    "source_table",
    "TaskDataModule",
    "TrajectoryWriter",
    "write_trajectories",
    "read_trajectories",
    "RecordedTurns",
    "collate_rows",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "module" if name == "TaskDataModule" else "recorded"
    return getattr(import_module(f"{__name__}.{module}"), name)
