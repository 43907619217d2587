"""Bringing new weights to engines, to several at a time or to that of one group while the next group learns."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from drmas_pl.workers.protocols import PolicyWorkerProtocol


class BackgroundWeightSync:
    """Opens the rollout phase of groups, each in a thread, and closes it as soon as their engines have the new weights.

    Only engines are woken that take nothing away from a group that learns: those with weights of their own that stay where they are.
    Others are given new weights when the next rollout opens. Leaving the context waits for all.

    Args:
        idle: Whether engines do nothing else at this time.
    """

    def __init__(self, *, idle: bool) -> None:
        self.idle = idle
        self._threads = ThreadPoolExecutor(thread_name_prefix="weight-sync")
        self._running: list[Future[None]] = []

    def begin(self, group: PolicyWorkerProtocol) -> None:
        """Bring new weights to the engine of a sleeping group, if that can be done now."""
        if not (self.idle and group.syncs_in_background):
            return
        if group.engine.weights_version != group.weights_version:
            self._running.append(self._threads.submit(_sync, group))

    def __enter__(self) -> BackgroundWeightSync:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        if error is None:
            for future in self._running:
                future.result()


def _sync(group: PolicyWorkerProtocol) -> None:
    with group.rollout():
        pass
