"""A worker group as the driver sees it: the same words as :class:`~drmas_pl.workers.group.WorkerGroup`, the work on its ranks.

Rows go to every rank, which takes its share of each minibatch; prompts are divided, since samples do not depend on what else is in
a batch. A group that lost a rank raises :class:`~drmas_pl.errors.GroupLost` until :meth:`RemoteGroup.restore` has started it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drmas_pl.agent import Agent
from drmas_pl.batch import Row
from drmas_pl.cluster.pool import Pool
from drmas_pl.cluster.rank import RankFacts, RankParts
from drmas_pl.cluster.watch import Watch
from drmas_pl.engines.base import Engine
from drmas_pl.errors import GroupLost
from drmas_pl.types import Completion, GenerationRequest, Turn
from drmas_pl.workers.lifecycle import Lifecycle, State
from drmas_pl.workers.update import UpdateReport


class RemoteGroup:
    """Drives the ranks of one worker group. Its agents render and parse here; their weights are elsewhere.

    The ranks start at once and in parallel to those of other groups; :meth:`wait` makes them a group.

    Args:
        parts: What each rank builds.
        pool: Starts processes on the group's seats.
        timeout: Seconds that a stage may take.
        repeats: How often a stage is repeated that lost a group.
        alone: Whether its devices are its own, so that it may work while other groups do.
    """

    def __init__(self, parts: RankParts, *, pool: Pool, timeout: float, repeats: int, alone: bool = False) -> None:
        plan = parts.plan
        self.name, self.settings, self.parts, self.pool = plan.name, plan.settings, parts, pool
        self.repeats, self.alone = repeats, alone
        self.agents: dict[str, Agent] = {agent.name: agent for agent in sorted(plan.agents, key=lambda agent: agent.name)}
        self.lifecycle = Lifecycle(plan.name)
        self.watch = Watch(plan.name, list(self.agents), timeout=timeout)
        self.engine: Engine = RemoteEngine(self)
        self.weights_version = self.parameter_count = 0
        self.changed = True
        self.facts: list[RankFacts] = []
        self.actors: list[Any] = pool.start(plan.name)

    def wait(self) -> None:
        """Wait until every rank has its weights.

        Raises:
            GroupLost: A rank died or took too long.
        """
        address = self._call("address", stage="start", ranks=1)[0]
        self.facts = self._call("join", self.parts, address, stage="start")
        first = self.facts[0]
        self.parameter_count, self.engine.context_length = first.parameter_count, first.context_length
        for agent in self.agents.values():
            agent.tokenizer = first.tokenizer

    @property
    def lost(self) -> bool:
        """Whether the ranks are gone."""
        return not self.actors

    @contextmanager
    def rollout(self) -> Iterator[Engine]:
        """Wake the engines with the newest weights for the duration of the block."""
        with self._phase(State.ROLLOUT):
            yield self.engine

    @contextmanager
    def training(self) -> Iterator[None]:
        """Hold the policy ready for updates for the duration of the block."""
        with self._phase(State.TRAINING):
            yield

    def update(self, rows: Mapping[str, Sequence[Row]], *, seed: int) -> UpdateReport:
        """Run the iteration's optimizer steps; see :meth:`WorkerGroup.update`.

        Raises:
            GroupLost: A rank died or took too long.
        """
        return self.begin_update(rows, seed=seed)()

    def begin_update(self, rows: Mapping[str, Sequence[Row]], *, seed: int) -> Callable[[], UpdateReport]:
        """Begin with the iteration's optimizer steps and return what waits for their end."""
        self.lifecycle.require(State.TRAINING)
        self.changed = True
        refs = self._start("update", self.pool.share(dict(rows)), seed=seed)

        def finish() -> UpdateReport:
            report: UpdateReport
            report, self.weights_version = self._finish(refs, "update")[0]
            return report

        return finish

    def reward_penalties(self, agent: Agent, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score; see :meth:`WorkerGroup.reward_penalties`."""
        if not agent.objective.penalises_reward:
            return [0.0] * len(turns)
        penalties: list[float] = self._call("reward_penalties", agent.name, self.pool.share(list(turns)), stage="scoring")[0]
        return penalties

    def begin_generation(self, requests: Sequence[GenerationRequest]) -> Callable[[], list[Completion]]:
        """Have the ranks continue the prompts, consecutive ones on the same rank, and return what waits for the end."""
        self.lifecycle.require(State.ROLLOUT)
        refs = self._start("generate", each=split_evenly(requests, len(self.actors)))
        tasks = sorted({str(request.order[0]) for request in requests if request.order})
        return lambda: list(itertools.chain.from_iterable(self._finish(refs, "generation", tasks)))

    def save(self, folder: Path) -> None:
        """Write the group's part of a checkpoint; the first rank does, into a folder that all nodes see."""
        self._call("save", folder.resolve(), stage="saving")

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote.

        Raises:
            CheckpointError: A file is missing or does not fit this group.
        """
        self.changed = True
        self.weights_version = self._call("load", folder.resolve(), stage="loading")[0]

    def keep(self, folder: Path) -> None:
        """Write the state to go on from when a rank is lost."""
        self._call("keep", folder.resolve(), stage="keeping its state")

    def restore(self, folder: Path | None) -> None:
        """Start the ranks again if they are gone, and go back to the state in ``folder``, if there is one."""
        if self.lost:
            self.actors = self.pool.start(self.name)
            self.wait()
        if folder is not None:
            self.weights_version = self._call("restore", folder.resolve(), stage="restoring")[0]

    def abandon(self) -> None:
        """End every process of the group."""
        actors, self.actors = self.actors, []
        self.pool.end(actors)

    def close(self) -> None:
        """Release engines and processes for good."""
        self.lifecycle.move(State.CLOSED)
        if not self.lost:
            self._call("close", stage="closing")
            self.abandon()

    def describe(self) -> str:
        """Say where the ranks are, for example ``2 ranks, ddp, cuda on 10.0.0.1 GPU 0, 10.0.0.1 GPU 1``."""
        places = ", ".join(" ".join([fact.node, *(f"GPU {gpu}" for gpu in fact.gpus)]) for fact in self.facts)
        noun = "rank" if len(self.facts) == 1 else f"ranks, {self.parts.parallel}"
        return f"{len(self.facts)} {noun}, {self.facts[0].device.partition(':')[0]} on {places}"

    @contextmanager
    def _phase(self, state: State) -> Iterator[None]:
        """Open a phase here and on the ranks; ranks that are gone need not close it."""
        with self.lifecycle.phase(state):
            self._call("enter", state.value, self.weights_version, stage="waking")
            try:
                yield
            finally:
                if not self.lost:
                    self._call("leave", stage="falling asleep")

    def _call(self, method: str, *args: Any, stage: str, ranks: int | None = None) -> list[Any]:
        """Call a method on every rank, or the first ``ranks``, and return the results."""
        return self._finish(self._start(method, *args, ranks=ranks), stage)

    def _start(self, method: str, *args: Any, each: Sequence[Any] | None = None, ranks: int | None = None, **kwargs: Any) -> list[Any]:
        """Call a method on the ranks; ``each`` gives every one an argument of its own. Return the pending results."""
        if self.lost:
            raise GroupLost(f"worker group {self.name!r} has lost its processes; restore it first")
        return [
            getattr(actor, method).remote(*(args if each is None else (each[rank],)), **kwargs)
            for rank, actor in enumerate(self.actors[:ranks])
        ]

    def _finish(self, refs: Sequence[Any], stage: str, tasks: Sequence[str] = ()) -> list[Any]:
        """Wait for results; a group whose ranks no longer work together is given up."""
        try:
            return self.watch.collect(refs, stage, tasks=tasks)
        except GroupLost:
            self.abandon()
            raise
        except BaseException:
            # a rank that still works waits for others that have given up
            if not self.pool.all_done(refs):
                self.abandon()
            raise


class RemoteEngine(Engine):
    """Generates on the ranks of a group.

    Args:
        group: Divides the prompts among its ranks.
    """

    def __init__(self, group: RemoteGroup) -> None:
        self.group = group

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Continue every prompt once; see :meth:`Engine.generate`."""
        return self.group.begin_generation(requests)()

    def begin(self, requests: Sequence[GenerationRequest]) -> Callable[[], list[Completion]]:
        """Begin at once where the devices are the group's own; see :meth:`Engine.begin`."""
        return self.group.begin_generation(requests) if self.group.alone else super().begin(requests)


def split_evenly(items: Sequence[Any], parts: int) -> list[list[Any]]:
    """Cut a sequence into consecutive parts whose lengths differ by at most 1.

    >>> split_evenly("abcde", 3)
    [['a'], ['b', 'c'], ['d', 'e']]
    """
    cuts = [index * len(items) // parts for index in range(parts + 1)]
    return [list(items[start:stop]) for start, stop in itertools.pairwise(cuts)]
