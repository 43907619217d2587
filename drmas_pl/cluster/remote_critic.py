"""A critic as the driver sees it: the same words as :class:`~drmas_pl.workers.value_worker.ValueWorker`, the work on its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.ray_actor_group import RayActorGroup, RemoteWorker
from drmas_pl.cluster.stage_monitor import StageMonitor
from drmas_pl.models.value_head import ValueRow
from drmas_pl.workers.build_critics import ValueWorkerPlan
from drmas_pl.workers.value_worker import CriticReport


class RemoteValueWorker(RemoteWorker):
    """Drives the ranks of one critic; rows go to every rank, which takes its share of them.

    Args:
        plan: The critic.
        crew: Its ranks.
        timeout: Seconds that a stage may take.
        max_retries: How often a stage is repeated that lost a critic.
        owns_devices: Whether no other worker uses its devices.
    """

    def __init__(
        self,
        plan: ValueWorkerPlan,
        *,
        crew: RayActorGroup,
        timeout: float,
        max_retries: int,
        owns_devices: bool = False,
    ) -> None:
        super().__init__(
            plan.name,
            crew=crew,
            watch=StageMonitor(plan.name, sorted(plan.agents), timeout=timeout, kind="critic"),
            max_retries=max_retries,
            owns_devices=owns_devices,
        )
        self.plan, self.settings, self.agents = plan, plan.settings, frozenset(plan.agents)
        self.parameter_count = 0

    @property
    def label(self) -> str:
        """Its name among everything that runs on the cluster."""
        return self.plan.label

    def wait(self) -> None:
        """Wait until every rank has its weights; see :meth:`RemoteWorker.wait`."""
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
        return self.begin_update(rows, seed=seed)()

    def begin_update(self, rows: Sequence[ValueRow], *, seed: int) -> Callable[[], CriticReport]:
        """Begin with the iteration's optimizer steps and return what waits for their end."""
        self.changed = True
        refs = self._begin("update", self.crew.pool.share(list(rows)), seed=seed)

        def finish() -> CriticReport:
            report: CriticReport = self._finish(refs, "update")[0]
            return report

        return finish

    def training(self) -> AbstractContextManager[None]:
        """Do nothing: the ranks hold weights and optimizer state ready while they learn."""
        return nullcontext()
