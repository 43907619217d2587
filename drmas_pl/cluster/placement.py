"""Which rank runs where: workers in one pool of equal bundles, each of them one rank's device and CPUs.

Colocated workers share bundles, rank i of every worker in bundle i, since they work in turns; otherwise each rank has a bundle of its
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
        assignments: Where the ranks of each actor group are, in order.
    """

    bundles: int
    bundle: Resources
    assignments: Mapping[str, tuple[BundleAssignment, ...]]


def plan_placement(ranks: Mapping[str, int], *, colocate: bool, cpus: float, gpus: float) -> PlacementPlan:
    """Assign the ranks of every actor group to bundles.

    Args:
        ranks: Number of ranks by actor group.
        colocate: Whether actor groups share bundles.
        cpus: CPUs of a bundle.
        gpus: GPUs of a bundle.

    >>> plan = plan_placement({"solver": 2, "verifier": 1}, colocate=True, cpus=1, gpus=1)
    >>> plan.bundles, plan.assignments["verifier"]
    (2, (BundleAssignment(bundle=0, cpus=0.5, gpus=0.5),))
    """
    bundle = {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    assignments: dict[str, tuple[BundleAssignment, ...]] = {}
    if colocate:
        members = [sum(count > index for count in ranks.values()) for index in range(max(ranks.values()))]
        for name, count in ranks.items():
            assignments[name] = tuple(
                BundleAssignment(index, _share(cpus, members[index]), _share(gpus, members[index]))
                for index in range(count)
            )
        return PlacementPlan(len(members), bundle, assignments)
    first = 0
    for name, count in ranks.items():
        assignments[name] = tuple(BundleAssignment(first + index, cpus, gpus) for index in range(count))
        first += count
    return PlacementPlan(first, bundle, assignments)


def actor_group_name(members: Sequence[str]) -> str:
    """Name the processes that belong to one group, or to several that share them.

    >>> actor_group_name(["solver"]), actor_group_name(["solver", "verifier"])
    ('solver', 'solver+verifier')
    """
    return "+".join(members)


def count_fitting(plan: PlacementPlan, nodes: Sequence[Resources], *, free: Resources) -> int:
    """Return how many bundles fit: each into one node, all of them into what is free.

    >>> count_fitting(plan_placement({"solver": 2}, colocate=True, cpus=2, gpus=0), [{"CPU": 3}, {"CPU": 4}], free={"CPU": 5})
    2
    """
    return min(sum(_capacity(node, plan.bundle) for node in nodes), _capacity(free, plan.bundle))


def check_capacity(plan: PlacementPlan, nodes: Sequence[Resources], *, free: Resources) -> None:
    """Make sure that the nodes can hold the bundles.

    Args:
        plan: What is asked.
        nodes: What each node of the cluster has.
        free: What nobody else has reserved, over all nodes.

    Raises:
        ConfigError: They cannot; the message says what was asked, what there is, and what to change.
    """
    fitting = count_fitting(plan, nodes, free=free)
    if fitting >= plan.bundles:
        return
    groups = ", ".join(f"{name} {len(own)}" for name, own in plan.assignments.items())
    total = {name: amount * plan.bundles for name, amount in plan.bundle.items()}
    has = {name: sum(node.get(name, 0) for node in nodes) for name in plan.bundle}
    left = {name: free.get(name, 0) for name in plan.bundle}
    raise ConfigError(
        f"the worker groups ask for {plan.bundles} places with {_text(plan.bundle)} each (ranks: {groups}), {_text(total)} in all; "
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
