"""Repeating a stage of an iteration that lost a worker.

After every update workers in other processes write a snapshot. A stage that loses one of their processes is repeated from there: every seed
is derived, so the repetition does what the first attempt would have done. Workers of this process are lost with the run and write nothing.
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
    """Runs the stages of an iteration.

    Args:
        workers: Policy and value workers of the run.
        folder: Folder of the snapshots; deleted at the end of the run.
    """

    def __init__(self, workers: Iterable[WorkerProtocol[Any]], folder: Path) -> None:
        self.workers = [worker for worker in workers if worker.max_retries > 0]
        self.folder = folder
        self.max_retries = min((worker.max_retries for worker in self.workers), default=0)
        self._snapshots: dict[str, Path] = {}
        self._numbers = itertools.count()

    def run(self, stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``stage``, and again from the last snapshot when it loses a worker.

        Raises:
            TrainingStopped: It lost a worker more often than is allowed.
        """
        lost: GroupLost | None = None
        for attempt in range(self.max_retries + 1):
            try:
                if lost is not None:
                    self._restore()
                return stage(*args, **kwargs)
            except GroupLost as error:
                lost = error
                log.warning("%s (loss %d of at most %d in a row)", error, attempt + 1, self.max_retries + 1)
        raise TrainingStopped(f"gave up: {lost}") from lost

    def run_update(self, stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a stage that changes weights; its snapshots are part of it, so that no later repetition learns twice.

        Raises:
            TrainingStopped: It lost a worker more often than is allowed.
        """

        def update_and_snapshot() -> T:
            result = stage(*args, **kwargs)
            self.snapshot()
            return result

        return self.run(update_and_snapshot)

    def snapshot(self) -> None:
        """Have every worker that has changed write a snapshot; the former ones count until all are written."""
        if self.max_retries == 0:
            return
        number = next(self._numbers)
        changed = [worker for worker in self.workers if worker.changed]
        fresh = {worker.label: self.folder / f"{worker.label}-{number}" for worker in changed}
        for worker in changed:
            worker.snapshot(fresh[worker.label])
        for worker in changed:
            worker.changed = False
            if worker.label in self._snapshots:
                shutil.rmtree(self._snapshots[worker.label], ignore_errors=True)
        self._snapshots |= fresh

    def clear(self) -> None:
        """Delete the snapshots."""
        self._snapshots = {}
        shutil.rmtree(self.folder, ignore_errors=True)

    def _restore(self) -> None:
        """Bring every worker back to its snapshot; one without a snapshot starts anew."""
        for worker in self.workers:
            worker.restore(self._snapshots.get(worker.label))
            worker.changed = worker.label not in self._snapshots
