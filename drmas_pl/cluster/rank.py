"""One rank of worker groups: a process that holds real :class:`~drmas_pl.workers.policy_worker.PolicyWorker` objects on one device.

There is one group in it, or all groups that share a base model. Generation alone is divided among ranks.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from torch import nn

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.full_weights_engine import FullWeightsEngine
from drmas_pl.cluster.process import Address, ProcessParts, RankInfo, RankProcess, own_place
from drmas_pl.cluster.rank_requests import Answer, NumberedRequest, RankRequests
from drmas_pl.cluster.rank_zero_engine import RankZeroServerEngine, devices_beside_rank_zero
from drmas_pl.engines.base import Engine, EngineFactory
from drmas_pl.engines.served import ServedEngine
from drmas_pl.models.adapters import LoraSettings
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Turn
from drmas_pl.workers.build import PolicyWorkerPlan, adapted_policies
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.strategies import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec(ProcessParts):
    """What a rank builds its groups from; travels to another process.

    Attributes:
        plans: Agents, model and settings of each group; the agents are not bound to weights.
        engine: Returns the engine of a group, by its name, that generates with a policy.
        lora: Shape of the adapters, where the groups are adapters on one base model.
    """

    plans: tuple[PolicyWorkerPlan, ...]
    engine: EngineFactory
    lora: LoraSettings | None = None

    @property
    def parallel(self) -> Parallel:
        """How ranks really share the model: weights that are never trained gain nothing from shards, since engines need them whole."""
        return self.strategy if any(plan.settings.trainable for plan in self.plans) else "ddp"


class Rank(RankProcess[PolicyWorker]):
    """Runs in its own process, as a Ray actor; see :class:`~drmas_pl.cluster.process.RankProcess`.

    Args:
        rank: Rank in the crew.
        ranks: Number of ranks of the crew.
    """

    concurrent_methods = frozenset({"submit", "cancel", "poll"})

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__(rank, ranks)
        self._phases: dict[str, list[ExitStack]] = defaultdict(list)
        self._requests: dict[str, RankRequests] = {}

    def join(self, parts: RankSpec, address: Address) -> dict[str, RankInfo]:
        """Meet the other ranks at the first one's ``address`` and build the groups."""
        fabric = self._meet(parts, address)
        adapted = (
            {}
            if parts.lora is None
            else adapted_policies(parts.plans, parts.load, parts.lora, seed=parts.seed)
        )
        facts = {}
        for plan in parts.plans:
            policy, tokenizer = adapted[plan.name] if plan.name in adapted else parts.load(plan.model)
            group = PolicyWorker(
                plan.name,
                policy=policy,
                tokenizer=tokenizer,
                agents=plan.agents,
                engine=self._engine(parts, plan.name, policy, tokenizer, fabric),
                fabric=fabric,
                settings=plan.settings,
            )
            self.members[plan.name] = group
            self._requests[plan.name] = RankRequests(group.engine)
            facts[plan.name] = replace(
                self._facts(
                    fabric,
                    tokenizer,
                    parameter_count=group.parameter_count,
                    context_length=group.engine.context_length,
                ),
                served=isinstance(group.engine, RankZeroServerEngine),
                end_ids=next(iter(group.agents.values())).end_ids,
            )
        return facts

    def enter(self, name: str, phase: Literal["rollout", "training"], version: int) -> int | None:
        """Open a phase of a group, with its weights known as ``version``; return the context length of its engine."""
        group = self.members[name]
        group.weights_version = version
        opened = ExitStack()
        opened.enter_context(group.rollout() if phase == "rollout" else group.training())
        self._phases[name].append(opened)
        return group.engine.context_length

    def leave(self, name: str) -> None:
        """Close the phase of the group that was opened last."""
        self._phases[name].pop().close()

    def submit(self, name: str, requests: Sequence[NumberedRequest]) -> None:
        """Give requests to a group's engine."""
        self._requests[name].submit(requests)

    def cancel(self, name: str, numbers: Sequence[int]) -> None:
        """Give requests up."""
        self._requests[name].cancel(numbers)

    def poll(self, name: str, seconds: float) -> list[Answer]:
        """Return what has been answered; wait at most ``seconds`` for the first answer."""
        return self._requests[name].collect(seconds)

    def step(
        self, name: str, cancelled: Sequence[int], count: int, requests: Sequence[NumberedRequest]
    ) -> list[Answer]:
        """Give requests up, take over this rank's new ones, make at most ``count`` steps, and return what is answered."""
        found = self._requests[name]
        found.cancel(cancelled)
        found.submit(requests)
        found.step(count)
        return found.collect()

    def update(
        self, name: str, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int
    ) -> tuple[UpdateReport, int]:
        """Run the optimizer steps on all rows; return the report and the version of the weights."""
        torch.manual_seed(derive_seed(seed, "rank", self.rank))
        return self.members[name].update(rows, seed=seed), self.members[name].weights_version

    def reward_penalties(self, name: str, agent: str, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score."""
        return self.members[name].reward_penalties(self.members[name].agents[agent], turns)

    def load(self, name: str, folder: Path) -> int:
        """Restore a checkpoint's part of a group; return the version of the weights."""
        super().load(name, folder)
        return self.members[name].weights_version

    def restore(self, name: str, folder: Path) -> int:
        """Take over what :meth:`snapshot` wrote; return the version of the weights."""
        super().restore(name, folder)
        return self.members[name].weights_version

    def close(self, name: str) -> None:
        """Release a group's engine."""
        self.members[name].close()

    def _engine(
        self, parts: RankSpec, name: str, policy: nn.Module, tokenizer: Any, fabric: Fabric
    ) -> Engine:
        """Build the engine: one for all ranks if it has a server, else on a whole copy of weights that are going to be sharded."""
        engine = parts.engine(name, policy, tokenizer)
        if isinstance(engine, ServedEngine):
            engine.use_devices(devices_beside_rank_zero(own_place(), fabric))
            return RankZeroServerEngine(engine, policy=policy, fabric=fabric)
        if self.ranks == 1 or parts.parallel == "ddp":
            return engine
        engine.close()
        replica = fabric.to_device(fabric.strategy.precision.convert_module(copy.deepcopy(policy)))
        replica.requires_grad_(False).eval()
        movable = any(plan.name == name and plan.settings.update.offload == "all" for plan in parts.plans)
        return FullWeightsEngine(
            parts.engine(name, replica, tokenizer), policy=policy, replica=replica, movable=movable
        )
