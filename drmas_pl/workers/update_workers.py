"""One iteration's updates: of workers with devices of their own at the same time, of others in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.protocols import WorkerProtocol

Rows = TypeVar("Rows")
AnyWorker = TypeVar("AnyWorker", bound=WorkerProtocol[Any])


def update_workers(
    workers: Sequence[AnyWorker],
    rows: Mapping[str, Any],
    seeds: Mapping[str, int],
    *,
    begun: Callable[[str, int, int], None] = lambda name, place, count: None,
    learnt: Callable[[AnyWorker], None] = lambda worker: None,
) -> dict[str, UpdateReport]:
    """Run the optimizer steps of every worker on its rows.

    Args:
        workers: Policy workers, or value workers, that learn.
        rows: What each of them learns from, by its name.
        seeds: Seed of the shuffle into minibatches by name.
        begun: Called when a worker begins, with its name, its place from 1 on among the workers, and their number.
        learnt: Called with a worker that is asleep again while others may still have to learn.

    Returns:
        Reports by name, in the order of ``workers``.

    Raises:
        GroupLost: A worker on a cluster lost a process.
        TrainingStopped: Too many minibatches of a worker had to be skipped.
    """
    reports: dict[str, UpdateReport] = {}
    place = {worker.name: number for number, worker in enumerate(workers, start=1)}
    with ExitStack() as stack:
        ends = {}
        for worker in workers:
            if worker.owns_devices:
                begun(worker.name, place[worker.name], len(workers))
                stack.enter_context(worker.training())
                ends[worker.name] = worker.begin_update(rows[worker.name], seed=seeds[worker.name])
        for worker in workers:
            if worker.name not in ends:
                begun(worker.name, place[worker.name], len(workers))
                with worker.training():
                    reports[worker.name] = worker.update(rows[worker.name], seed=seeds[worker.name])
                learnt(worker)
        reports |= {name: finish() for name, finish in ends.items()}
    return {worker.name: reports[worker.name] for worker in workers}
