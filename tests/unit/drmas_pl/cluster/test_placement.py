"""Which rank runs where, and what is said when the cluster is too small."""

from __future__ import annotations

import pytest

from drmas_pl.cluster.placement import check_capacity, plan_placement
from drmas_pl.errors import ConfigError


def test_colocated_groups_share_bundles() -> None:
    plan = plan_placement({"large": 3, "small": 1, "middle": 2}, colocate=True, cpus=2, gpus=1)
    assert plan.bundles == 3 and plan.bundle == {"CPU": 2, "GPU": 1}
    assert [assignment.bundle for assignment in plan.assignments["large"]] == [0, 1, 2]
    assert [assignment.bundle for assignment in plan.assignments["middle"]] == [0, 1]
    for index, members in enumerate((3, 2, 1)):
        own = [assignments[index] for assignments in plan.assignments.values() if index < len(assignments)]
        assert len(own) == members and len(set(own)) == 1
        for name in ("cpus", "gpus"):
            total = sum(getattr(assignment, name) for assignment in own)
            whole = {"cpus": 2, "gpus": 1}[name]
            assert (
                whole - 0.001 < total <= whole
            )  # never more than the bundle has, after Ray has rounded to 1/10000


def test_groups_of_their_own_share_nothing() -> None:
    plan = plan_placement({"first": 2, "second": 1}, colocate=False, cpus=1, gpus=0)
    assert plan.bundles == 3 and plan.bundle == {"CPU": 1}
    assert [assignment.bundle for assignments in plan.assignments.values() for assignment in assignments] == [
        0,
        1,
        2,
    ]
    assert all(
        assignment.cpus == 1 and assignment.gpus == 0
        for assignments in plan.assignments.values()
        for assignment in assignments
    )


def test_bundles_must_fit_into_single_nodes() -> None:
    plan = plan_placement({"group": 2}, colocate=True, cpus=4, gpus=1)
    check_capacity(plan, [{"CPU": 8, "GPU": 2}], free={"CPU": 8, "GPU": 2})
    check_capacity(plan, [{"CPU": 4, "GPU": 1}, {"CPU": 6, "GPU": 1}], free={"CPU": 10, "GPU": 2})
    for nodes, free in (
        (
            [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 6.0, "GPU": 1.0}],
            {"CPU": 8.0, "GPU": 2.0},
        ),  # enough in all, not in one place
        ([{"CPU": 8.0, "GPU": 2.0}], {"CPU": 8.0, "GPU": 1.0}),  # somebody else has the other GPU
        ([{"CPU": 8.0}], {"CPU": 8.0}),
        ([], {}),
    ):
        with pytest.raises(ConfigError, match="the worker groups ask for 2 places"):
            check_capacity(plan, nodes, free=free)


def test_the_message_says_what_was_asked_and_what_there_is() -> None:
    plan = plan_placement({"solver": 4, "verifier": 2}, colocate=False, cpus=2, gpus=1)
    with pytest.raises(ConfigError) as caught:
        check_capacity(plan, [{"CPU": 8, "GPU": 4}], free={"CPU": 7, "GPU": 3})
    message = str(caught.value)
    for part in (
        "6 places with 2 CPU and 1 GPU each (ranks: solver 4, verifier 2), 12 CPU and 6 GPU in all",
        "1 node(s) with 8 CPU and 4 GPU, of which 7 CPU and 3 GPU are free, room for 3",
        "lower cluster.ranks",
        "cluster.address",
    ):
        assert part in message


def test_rounding_does_not_lose_a_place() -> None:
    check_capacity(
        plan_placement({"group": 3}, colocate=True, cpus=0.1, gpus=0), [{"CPU": 0.3}], free={"CPU": 0.3}
    )
