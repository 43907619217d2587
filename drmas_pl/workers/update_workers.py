"""One iteration's updates: of groups with devices of their own at the same time, of others in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.protocols import PolicyWorkerProtocol


def update_workers(
    groups: Sequence[PolicyWorkerProtocol],
    rows: Mapping[str, Sequence[TrainingRow]],
    seeds: Mapping[str, int],
    *,
    begun: Callable[[str, int, int], None] = lambda name, place, count: None,
    learnt: Callable[[PolicyWorkerProtocol], None] = lambda group: None,
) -> dict[str, UpdateReport]:
    """Run the optimizer steps of every group on its agents' rows.

    Args:
        groups: Groups that learn.
        rows: Rows by agent name.
        seeds: Seed of the shuffle into minibatches by group.
        begun: Called when a group begins, with its name, its place from 1 on among the groups, and their number.
        learnt: Called with a group that is asleep again while others may still have to learn.

    Returns:
        Reports by group, in the order of ``groups``.

    Raises:
        GroupLost: A group on a cluster lost a process.
        TrainingStopped: Too many minibatches of a group had to be skipped.
    """
    reports: dict[str, UpdateReport] = {}
    place = {group.name: number for number, group in enumerate(groups, start=1)}
    with ExitStack() as stack:
        ends = {}
        for group in groups:
            if group.owns_devices:
                begun(group.name, place[group.name], len(groups))
                stack.enter_context(group.training())
                ends[group.name] = group.begin_update(_own(group, rows), seed=seeds[group.name])
        for group in groups:
            if group.name not in ends:
                begun(group.name, place[group.name], len(groups))
                with group.training():
                    reports[group.name] = group.update(_own(group, rows), seed=seeds[group.name])
                learnt(group)
        reports |= {name: finish() for name, finish in ends.items()}
    return {group.name: reports[group.name] for group in groups}


def _own(
    group: PolicyWorkerProtocol, rows: Mapping[str, Sequence[TrainingRow]]
) -> dict[str, Sequence[TrainingRow]]:
    return {agent: rows[agent] for agent in group.agents if agent in rows}
