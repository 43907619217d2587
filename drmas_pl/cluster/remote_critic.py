"""A critic as the driver sees it: the same words as :class:`~drmas_pl.workers.critic.ValueWorker`, the work on its ranks."""

from __future__ import annotations

from collections.abc import Sequence

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.crew import RayActorGroup, Remote
from drmas_pl.cluster.watch import StageMonitor
from drmas_pl.models.value_head import ValueRow
from drmas_pl.workers.build_critics import CriticPlan
from drmas_pl.workers.critic import CriticReport


class RemoteValueWorker(Remote):
    """Drives the ranks of one critic; rows go to every rank, which takes its share of them.

    Args:
        plan: The critic.
        crew: Its ranks.
        timeout: Seconds that a stage may take.
        repeats: How often a stage is repeated that lost a critic.
    """

    def __init__(self, plan: CriticPlan, *, crew: RayActorGroup, timeout: float, repeats: int) -> None:
        super().__init__(
            plan.name,
            crew=crew,
            watch=StageMonitor(plan.name, sorted(plan.agents), timeout=timeout, kind="critic"),
            repeats=repeats,
        )
        self.plan, self.settings, self.agents = plan, plan.settings, frozenset(plan.agents)
        self.parameter_count = 0

    @property
    def label(self) -> str:
        """Its name among everything that runs on the cluster."""
        return self.plan.label

    def wait(self) -> None:
        """Wait until every rank has its weights; see :meth:`Remote.wait`."""
        super().wait()
        self.parameter_count = self.facts[0].parameter_count

    def values(self, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        """Return the value of each sampled token of ``rows``, in order.

        Raises:
            GroupLost: A rank died or took too long.
        """
        values: list[tuple[float, ...]] = self._call(
            "values", self.crew.pool.share(list(rows)), stage="judging"
        )[0]
        return values

    def update(self, rows: Sequence[ValueRow], *, seed: int) -> CriticReport:
        """Run the iteration's optimizer steps; see :meth:`ValueWorker.update`.

        Raises:
            GroupLost: A rank died or took too long.
        """
        self.changed = True
        report: CriticReport = self._finish(
            self._begin("update", self.crew.pool.share(list(rows)), seed=seed), "update"
        )[0]
        return report
