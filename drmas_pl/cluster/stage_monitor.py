"""Waiting for the ranks of a worker: no longer than a stage may take, and not for those that are dead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from drmas_pl.errors import GroupLost

# seconds that other ranks get to show whether one of them died when one reports an error, such as a lost connection
GRACE = 10.0
SHOWN = 8


class StageMonitor:
    """Collects what the ranks of one worker return.

    Args:
        owner: The worker, as messages call it, such as ``worker group 'shared'``.
        agents: Its agents.
        timeout: Seconds a stage may take.
    """

    def __init__(self, owner: str, agents: Sequence[str], *, timeout: float) -> None:
        self.owner = owner
        self.agents = list(agents)
        self.timeout = timeout

    def collect(self, refs: Sequence[Any], stage: str, *, tasks: Sequence[str] = ()) -> list[Any]:
        """Return the results in order.

        Args:
            refs: One pending result per rank that takes part.
            stage: What they are doing.
            tasks: Tasks they are doing it for.

        Raises:
            GroupLost: A rank died or the stage took too long.
            Exception: What the first rank to fail raised, if all ranks are alive.
        """
        import ray
        from ray.exceptions import RayActorError, RayTaskError, WorkerCrashedError

        deadline = time.monotonic() + self.timeout
        pending = list(refs)
        while pending:
            done, pending = ray.wait(pending, timeout=max(deadline - time.monotonic(), 0))
            if not done:
                raise self.stuck(stage, tasks)
            try:
                ray.get(done)
            except (RayActorError, WorkerCrashedError) as error:
                raise GroupLost(dead_message(self._who(stage, tasks), error)) from error
            except RayTaskError as error:
                self._raise_death(pending, stage, tasks)
                raise (error.cause or error) from error
        found: list[Any] = ray.get(list(refs))
        return found

    def stuck(self, stage: str, tasks: Sequence[str] = ()) -> GroupLost:
        """Return the error of ranks that do not end a stage."""
        return GroupLost(stuck_message(self._who(stage, tasks), self.timeout))

    def _raise_death(self, pending: Sequence[Any], stage: str, tasks: Sequence[str]) -> None:
        """Raise :class:`GroupLost` if one of the other ranks is dead, which then is why the first one failed."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError, WorkerCrashedError

        done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=GRACE) if pending else ([], [])
        for ref in done:
            try:
                ray.get(ref)
            except (RayActorError, WorkerCrashedError) as error:
                raise GroupLost(dead_message(self._who(stage, tasks), error)) from error
            except RayTaskError:
                continue

    def _who(self, stage: str, tasks: Sequence[str]) -> str:
        return stage_of(stage, self.owner, self.agents, tasks)


def stage_of(stage: str, owner: str, agents: Sequence[str], tasks: Sequence[str]) -> str:
    """Name a stage with its owner, agents and tasks.

    >>> stage_of("generation", "worker group 'shared'", ["search", "answer"], ["q1", "q2"])
    "generation of worker group 'shared' (agents search, answer; tasks q1, q2)"
    """
    shown = ", ".join(tasks[:SHOWN]) + (f" and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else "")
    return f"{stage} of {owner} (agents {', '.join(agents)}{f'; tasks {shown}' if tasks else ''})"


def stuck_message(stage: str, seconds: float) -> str:
    """Say that a stage is stuck.

    >>> stuck_message("update of worker group 'shared' (agents search)", 60)
    "update of worker group 'shared' (agents search) did not end within 60 s"
    """
    return f"{stage} did not end within {seconds:g} s"


def dead_message(stage: str, error: Exception) -> str:
    """Say that a process died during a stage."""
    reason = " ".join(str(error).split())
    return f"{stage} lost a process: {reason[:300]}"
