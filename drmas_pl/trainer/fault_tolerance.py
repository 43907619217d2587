"""Repeating what a lost worker group has spoilt.

After every iteration's updates the groups keep their state. A stage of the run that loses a group is repeated from there: every seed is
derived, so the repetition does what the first attempt would have done. Groups in this process are never lost and keep nothing.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from drmas_pl.errors import GroupLost, TrainingStopped
from drmas_pl.workers.protocols import WorkerProtocol

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class StageRetry:
    """Guards the stages of one run.

    Args:
        groups: Worker groups and critics of the run; those on a cluster are watched.
        folder: Where they keep their state; emptied at the end of the run.
    """

    def __init__(self, groups: Iterable[WorkerProtocol[Any, Any]], folder: Path) -> None:
        self.groups = [group for group in groups if group.max_retries > 0]
        self.folder = folder
        self.repeats = min((group.max_retries for group in self.groups), default=0)
        self._kept: dict[str, Path] = {}
        self._numbers = itertools.count()

    def run(self, stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``stage``, and again from the last kept state when it loses a group.

        Raises:
            TrainingStopped: It lost a group more often than is allowed.
        """
        lost: GroupLost | None = None
        for attempt in range(self.repeats + 1):
            try:
                if lost is not None:
                    self._restore()
                return stage(*args, **kwargs)
            except GroupLost as error:
                lost = error
                log.warning("%s (loss %d of at most %d in a row)", error, attempt + 1, self.repeats + 1)
        raise TrainingStopped(
            f"gave up: {lost}; go on from the last checkpoint with resume=RUN_FOLDER"
        ) from lost

    def snapshot(self) -> None:
        """Have every group that has changed write its state; the former one counts until all of them have."""
        if self.repeats == 0:
            return
        number, changed = next(self._numbers), [group for group in self.groups if group.changed]
        fresh = {group.label: self.folder / f"{group.label}-{number}" for group in changed}
        for group in changed:
            group.snapshot(fresh[group.label])
        for group in changed:
            group.changed = False
            if group.label in self._kept:
                shutil.rmtree(self._kept[group.label], ignore_errors=True)
        self._kept |= fresh

    def clear(self) -> None:
        """Delete what was kept."""
        self._kept = {}
        shutil.rmtree(self.folder, ignore_errors=True)

    def _restore(self) -> None:
        """Bring every group back to its kept state; one that has none starts anew."""
        for group in self.groups:
            group.restore(self._kept.get(group.label))
            group.changed = group.label not in self._kept
