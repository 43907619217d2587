"""The processes of a run: a Ray cluster, joined or started here, and one placement group in it for all worker groups."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from drmas_pl.cluster.placement import (
    PlacementPlan,
    actor_group_name,
    check_capacity,
    count_fitting,
    plan_placement,
)
from drmas_pl.cluster.rank import RankProcess
from drmas_pl.cluster.settings import ClusterSettings
from drmas_pl.errors import ConfigError, GroupLost

# seconds until places that are free have to be reserved
RESERVE = 60.0
# seconds until what an earlier run has given back counts as free
SETTLE = 10.0
# name of the threads of a process in which methods run beside others
CONCURRENT = "concurrent"
# seconds until a cluster has to accept a connection
PROBE = 10.0


class RayResourcePool:
    """Reserves places and starts the ranks of worker groups on them.

    Args:
        settings: Cluster to join, and what is reserved per rank.
        actor_groups: Labels of the workers in each actor group.
        wants_gpus: Whether ranks take a GPU where the cluster has any; ``settings.gpus_per_rank`` has the last word.

    Raises:
        ConfigError: Ray is not installed or not reachable, the cluster has no room for what is asked, or groups that share processes
            ask for different ones.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        actor_groups: Sequence[Sequence[str]],
        *,
        wants_gpus: bool = True,
    ) -> None:
        settings.check_groups([label for members in actor_groups for label in members])
        self.settings = settings
        ranks = {actor_group_name(members): settings.of(*members)[0] for members in actor_groups}
        self._started = join_cluster(settings.address)
        try:
            self.placement = self._plan(ranks, wants_gpus)
            self._places = self._reserve()
        except BaseException:
            self._stop()
            raise

    def start(self, actor_group: str, *, members: int = 1) -> list[Any]:
        """Start one process per rank of an actor group; they come up while the caller goes on.

        Args:
            actor_group: Name of the actor group.
            members: Number of workers in each process.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # for each member a thread that waits for answers, and one for everything that returns at once
        remote: Any = ray.remote
        actor = remote(concurrency_groups={CONCURRENT: members + 1})(RankProcess)
        assignments = self.placement.assignments[actor_group]
        return [
            actor.options(
                num_cpus=assignment.cpus,
                num_gpus=assignment.gpus,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._places, placement_group_bundle_index=assignment.bundle
                ),
            ).remote(rank, len(assignments))
            for rank, assignment in enumerate(assignments)
        ]

    def end(self, actors: Sequence[Any]) -> None:
        """End processes at once, also those that hang."""
        import ray

        for actor in actors:
            ray.kill(actor, no_restart=True)

    def share(self, value: Any) -> Any:
        """Put a value where every process can read it, and return a reference for calls."""
        import ray

        return ray.put(value)

    def all_done(self, refs: Sequence[Any]) -> bool:
        """Tell whether every call has ended, well or badly."""
        import ray

        return not ray.wait(list(refs), num_returns=len(refs), timeout=0)[1]

    def close(self) -> None:
        """Give the places back, and stop the cluster if it was started here."""
        import ray

        if ray.is_initialized():
            ray.util.remove_placement_group(self._places)
        self._stop()

    def _plan(self, ranks: Mapping[str, int], wants_gpus: bool) -> PlacementPlan:
        import ray

        nodes: list[Mapping[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = self.settings.gpus_per_rank
        if gpus is None:
            gpus = int(wants_gpus and any(node.get("GPU", 0) >= 1 for node in nodes))
        plan = plan_placement(
            ranks, colocate=self.settings.colocate, cpus=self.settings.cpus_per_rank, gpus=gpus
        )
        deadline = time.monotonic() + SETTLE
        while (
            count_fitting(plan, nodes, free=ray.available_resources()) < plan.bundles
            and time.monotonic() < deadline
        ):
            if count_fitting(plan, nodes, free=ray.cluster_resources()) < plan.bundles:
                break
            time.sleep(0.2)
        check_capacity(plan, nodes, free=ray.available_resources())
        return plan

    def _reserve(self) -> Any:
        import ray
        from ray.util.placement_group import placement_group

        places = placement_group([dict(self.placement.bundle)] * self.placement.bundles, strategy="PACK")
        if not places.wait(timeout_seconds=RESERVE):
            ray.util.remove_placement_group(places)
            raise GroupLost(
                f"Ray did not reserve {self.placement.bundles} free places within {RESERVE:g} s; `ray status` shows why"
            )
        return places

    def _stop(self) -> None:
        import ray

        if self._started:
            ray.shutdown()


def join_cluster(address: str | None) -> bool:
    """Connect to a Ray cluster; return whether this call has started it or the connection.

    Args:
        address: Cluster to join; None starts one on this machine. A connection that exists already is used as it is.

    Raises:
        ConfigError: Ray is not installed, or nothing answers at ``address``.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "cluster=ray needs Ray, which is not installed; run: pip install 'drmas_pl[ray]'"
        ) from error
    if ray.is_initialized():
        return False
    # nothing is sent anywhere unless the user asks for it
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _probe(address)
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            logging_level=logging.ERROR,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"no Ray cluster at cluster.address={address}: {error}; start one with `ray start --head`"
        ) from error
    return True


def _probe(address: str | None) -> None:
    """Fail at once where nothing listens; Ray would go on trying for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "//" not in host:
        socket.create_connection((host, int(port)), timeout=PROBE).close()
