"""Which engines are awake during a rollout phase: all of them, or one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, get_args

from drmas_pl.engines.base import Engine
from drmas_pl.types import Completion, GenerationRequest
from drmas_pl.workers.protocols import PolicyWorkerProtocol

Residency = Literal["all", "one"]


@contextmanager
def awake_engines(
    groups: Mapping[str, PolicyWorkerProtocol], residency: Residency = "all"
) -> Iterator[dict[str, Engine]]:
    """Open a rollout phase.

    Args:
        groups: Worker groups by name.
        residency: ``all`` wakes every engine for the whole phase; ``one`` wakes an engine when it is asked to generate and puts the one
            before it to sleep, so that groups whose weights do not fit beside each other can share a device.

    Yields:
        An engine by agent name; agents of one group share one object.

    Raises:
        ValueError: ``residency`` is unknown.
    """
    if residency not in get_args(Residency):
        raise ValueError(f"residency must be all or one, got {residency!r}")
    with ExitStack() as stack:
        if residency == "all":
            engines = {name: stack.enter_context(group.rollout()) for name, group in groups.items()}
        else:
            awake = _SingleAwake()
            stack.callback(awake.sleep)
            engines = {name: _OnDemand(group, awake) for name, group in groups.items()}
        yield {agent: engines[name] for name, group in groups.items() for agent in group.agents}


@contextmanager
def engines_ahead(groups: Mapping[str, PolicyWorkerProtocol]) -> Iterator[dict[str, Engine]]:
    """Open a rollout phase in which groups may learn, while their engines keep the weights they have now.

    Args:
        groups: Worker groups by name, whose engines have weights of their own unless the group never learns.

    Yields:
        An engine by agent name; agents of one group share one object.

    Raises:
        LifecycleError: An engine generates with weights that are trained.
    """
    with ExitStack() as stack:
        engines = {name: stack.enter_context(group.ahead()) for name, group in groups.items()}
        yield {agent: engines[name] for name, group in groups.items() for agent in group.agents}


class _SingleAwake:
    """The one group whose engine is awake, if any."""

    def __init__(self) -> None:
        self._group: PolicyWorkerProtocol | None = None
        self._phase = ExitStack()

    def wake(self, group: PolicyWorkerProtocol) -> Engine:
        """Return the engine of a group, awake, after putting another one to sleep."""
        if group is not self._group:
            self.sleep()
            self._phase.enter_context(group.rollout())
            self._group = group
        return group.engine

    def sleep(self) -> None:
        """Put it to sleep."""
        self._group = None
        self._phase.close()


class _OnDemand(Engine):
    """Stands for the engine of a group that may be asleep."""

    def __init__(self, group: PolicyWorkerProtocol, awake: _SingleAwake) -> None:
        self._group = group
        self._awake = awake
        self.context_length = group.engine.context_length

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Wake the group's engine and generate."""
        return self._awake.wake(self._group).generate(requests)
