"""Who sits where: worker groups in one pool of equal bundles, each of them one rank's device and CPUs.

Colocated groups share bundles, rank i of every group in bundle i, since they work in turns; otherwise each rank has a bundle of its
own. What is asked is compared with what there is before anything is scheduled, since Ray would wait for ever without a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

from drmas_pl.errors import ConfigError

Resources = Mapping[str, float]
# Ray counts in units of 1/10000
STEPS = 10_000


@dataclass(frozen=True, slots=True)
class BundleAssignment:
    """Place of one rank: its bundle, and its share of what the bundle reserves."""

    bundle: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """The pool of a run.

    Attributes:
        bundles: Number of bundles.
        bundle: What each of them reserves.
        seats: Seats of each group's ranks, in order.
    """

    bundles: int
    bundle: Resources
    seats: Mapping[str, tuple[BundleAssignment, ...]]


def plan_placement(ranks: Mapping[str, int], *, colocate: bool, cpus: float, gpus: float) -> PlacementPlan:
    """Seat the ranks of every group.

    Args:
        ranks: Number of ranks by group; groups that share processes count as one.
        colocate: Whether groups share bundles.
        cpus: CPUs of a bundle.
        gpus: GPUs of a bundle.

    >>> seating = plan_placement({"solver": 2, "verifier": 1}, colocate=True, cpus=1, gpus=1)
    >>> seating.bundles, seating.seats["verifier"]
    (2, (BundleAssignment(bundle=0, cpus=0.5, gpus=0.5),))
    """
    bundle = {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    seats: dict[str, tuple[BundleAssignment, ...]] = {}
    if colocate:
        members = [sum(count > index for count in ranks.values()) for index in range(max(ranks.values()))]
        for name, count in ranks.items():
            seats[name] = tuple(
                BundleAssignment(index, _share(cpus, members[index]), _share(gpus, members[index]))
                for index in range(count)
            )
        return PlacementPlan(len(members), bundle, seats)
    first = 0
    for name, count in ranks.items():
        seats[name] = tuple(BundleAssignment(first + index, cpus, gpus) for index in range(count))
        first += count
    return PlacementPlan(first, bundle, seats)


def actor_group_name(members: Sequence[str]) -> str:
    """Name the processes that belong to one group, or to several that share them.

    >>> actor_group_name(["solver"]), actor_group_name(["solver", "verifier"])
    ('solver', 'solver+verifier')
    """
    return "+".join(members)


def room(seating: PlacementPlan, nodes: Sequence[Resources], *, free: Resources) -> int:
    """Return how many bundles fit: each into one node, all of them into what is free.

    >>> room(plan_placement({"solver": 2}, colocate=True, cpus=2, gpus=0), [{"CPU": 3}, {"CPU": 4}], free={"CPU": 5})
    2
    """
    return min(sum(_capacity(node, seating.bundle) for node in nodes), _capacity(free, seating.bundle))


def check_room(seating: PlacementPlan, nodes: Sequence[Resources], *, free: Resources) -> None:
    """Make sure that the nodes can hold the bundles.

    Args:
        seating: What is asked.
        nodes: What each node of the cluster has.
        free: What nobody else has reserved, over all nodes.

    Raises:
        ConfigError: They cannot; the message says what was asked, what there is, and what to change.
    """
    fitting = room(seating, nodes, free=free)
    if fitting >= seating.bundles:
        return
    groups = ", ".join(f"{name} {len(seats)}" for name, seats in seating.seats.items())
    total = {name: amount * seating.bundles for name, amount in seating.bundle.items()}
    has = {name: sum(node.get(name, 0) for node in nodes) for name in seating.bundle}
    left = {name: free.get(name, 0) for name in seating.bundle}
    raise ConfigError(
        f"the worker groups ask for {seating.bundles} places with {_text(seating.bundle)} each (ranks: {groups}), {_text(total)} in all; "
        f"the cluster has {len(nodes)} node(s) with {_text(has)}, of which {_text(left)} are free, room for {fitting}; "
        "lower cluster.ranks or cluster.cpus_per_rank, set cluster.colocate=true or cluster.gpus_per_rank=0, "
        "or join a larger cluster with cluster.address"
    )


def _share(amount: float, members: int) -> float:
    """Divide what a bundle reserves, rounded down to what Ray can count."""
    return floor(amount / members * STEPS + 1e-6) / STEPS if members > 1 else amount


def _capacity(node: Resources, bundle: Resources) -> int:
    """Return how many bundles fit into a node."""
    return min((floor(node.get(name, 0) / amount + 1e-6) for name, amount in bundle.items()), default=0)


def _text(resources: Resources) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
