"""The processes of a run: a Ray cluster, joined or started here, and one placement group in it for all worker groups."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from drmas_pl.cluster.placement import PlacementPlan, actor_group_name, check_room, plan_placement, room
from drmas_pl.cluster.process import RankProcess
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
        groups: Names of the worker groups and critics.
        together: Which of them share processes; every other one has its own.
        wants_gpus: Whether ranks take a GPU where the cluster has any; ``settings.gpus_per_rank`` has the last word.

    Raises:
        ConfigError: Ray is not installed or not reachable, the cluster has no room for what is asked, or groups that share processes
            ask for different ones.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        groups: Sequence[str],
        *,
        together: Sequence[Sequence[str]] = (),
        wants_gpus: bool = True,
    ) -> None:
        settings.check_groups(groups)
        self.settings = settings
        shared = {group for members in together for group in members}
        crews = [*together, *((group,) for group in groups if group not in shared)]
        ranks = {actor_group_name(members): settings.of(*members)[0] for members in crews}
        self._started = join_cluster(settings.address)
        try:
            self.seating = self._seating(ranks, wants_gpus)
            self._places = self._reserve()
        except BaseException:
            self._stop()
            raise

    def start(self, crew: str, kind: type[RankProcess[Any]], *, members: int = 1) -> list[Any]:
        """Start one process of a ``kind`` per rank of a crew; they come up while the caller goes on.

        Args:
            crew: Name of the crew.
            kind: Class of the processes.
            members: Number of groups or critics in each of them.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        seats = self.seating.seats[crew]
        # for each member a thread that waits for answers, and one for everything that returns at once
        threads = {CONCURRENT: members + 1} if kind.concurrent_methods else {}
        remote: Any = ray.remote
        actor = remote(concurrency_groups=threads)(kind)
        return [
            actor.options(
                num_cpus=seat.cpus,
                num_gpus=seat.gpus,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._places, placement_group_bundle_index=seat.bundle
                ),
            ).remote(rank, len(seats))
            for rank, seat in enumerate(seats)
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

    def _seating(self, ranks: Mapping[str, int], wants_gpus: bool) -> PlacementPlan:
        import ray

        nodes: list[Mapping[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = self.settings.gpus_per_rank
        if gpus is None:
            gpus = int(wants_gpus and any(node.get("GPU", 0) >= 1 for node in nodes))
        seating = plan_placement(
            ranks, colocate=self.settings.colocate, cpus=self.settings.cpus_per_rank, gpus=gpus
        )
        deadline = time.monotonic() + SETTLE
        while (
            room(seating, nodes, free=ray.available_resources()) < seating.bundles
            and time.monotonic() < deadline
        ):
            if room(seating, nodes, free=ray.cluster_resources()) < seating.bundles:
                break
            time.sleep(0.2)
        check_room(seating, nodes, free=ray.available_resources())
        return seating

    def _reserve(self) -> Any:
        import ray
        from ray.util.placement_group import placement_group

        places = placement_group([dict(self.seating.bundle)] * self.seating.bundles, strategy="PACK")
        if not places.wait(timeout_seconds=RESERVE):
            ray.util.remove_placement_group(places)
            raise GroupLost(
                f"Ray did not reserve {self.seating.bundles} free places within {RESERVE:g} s; `ray status` shows why"
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
