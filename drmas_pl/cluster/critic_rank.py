"""One rank of a critic: a process that holds a real :class:`~drmas_pl.workers.value_worker.ValueWorker` on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.process import Address, ProcessParts, RankInfo, RankProcess
from drmas_pl.models.value_head import ValueRow
from drmas_pl.seeding import derive_seed
from drmas_pl.workers.build_critics import ValueWorkerPlan
from drmas_pl.workers.value_worker import CriticReport, ValueWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRankSpec(ProcessParts):
    """What a rank builds its critic from; travels to another process.

    Attributes:
        plan: The critic.
    """

    plan: ValueWorkerPlan


class ValueRank(RankProcess[ValueWorker]):
    """Runs in its own process, as a Ray actor; see :class:`~drmas_pl.cluster.process.RankProcess`."""

    def join(self, parts: ValueRankSpec, address: Address) -> dict[str, RankInfo]:
        """Meet the other ranks at the first one's ``address`` and build the critic."""
        fabric, plan = self._meet(parts, address), parts.plan
        backbone, tokenizer = parts.load(plan.model)
        critic = plan.build(backbone, tokenizer, fabric=fabric)
        self.members[plan.name] = critic
        return {plan.name: self._facts(fabric, tokenizer, parameter_count=critic.parameter_count)}

    def values(self, name: str, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        """Return the value of each sampled token of ``rows``, in order."""
        return self.members[name].values(rows)

    def update(self, name: str, rows: Sequence[ValueRow], *, seed: int) -> CriticReport:
        """Run the optimizer steps on all rows."""
        torch.manual_seed(derive_seed(seed, "rank", self.rank))
        return self.members[name].update(rows, seed=seed)
