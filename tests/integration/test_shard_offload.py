"""Sharded weights and optimizer state leave the device while others work, and nothing that is learnt depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from drmas_pl.errors import LifecycleError
from drmas_pl.workers.learner import UpdateSettings
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.shards import is_sharded, own_share
from tests.helpers.ranks import on_ranks
from tests.helpers.toy import make_groups
from tests.integration.test_shards import ROWS, assert_equal, state_of

# the processes of the ranks are started once
pytestmark = pytest.mark.xdist_group("ranks")

AGENT = {"objective": {"kl_coef": 0.1}}


def memory(tensors: list[Tensor]) -> int:
    """Return the bytes behind this rank's shares."""
    return sum(own_share(tensor.detach()).untyped_storage().nbytes() for tensor in tensors if tensor.dim())


def weights(group: PolicyWorker) -> int:
    models = [model for model in (group.policy, group.reference) if model is not None]
    return memory([tensor for model in models for tensor in (*model.parameters(), *model.buffers())])


def moments(group: PolicyWorker) -> int:
    optimizer: Any = group.optimizer
    return memory([value for state in optimizer.optimizer.state.values() for value in state.values()])


def course(fabric: Fabric, offload: Any, folder: Path) -> dict[str, Any]:
    """Play, learn, save, keep, restore and load, and note what is held when."""
    update = UpdateSettings(offload=offload, updates_per_iteration=2, old_logp="recompute")
    group = make_groups(fabric, names=("writer",), update=update, agent=AGENT)["writer"]
    assert is_sharded(group.policy) and group.reference is not None
    # the meter of a device: everything of this group that is in memory
    group.offload.meter = lambda: weights(group) + moments(group)
    held = {}
    for turn in range(2):
        with group.training():
            group.update(ROWS, seed=turn)
            held["training"] = (weights(group), moments(group))
        with group.rollout():
            held["rollout"] = (weights(group), moments(group))
        group.score(group.module, ROWS["writer"], group.agents["writer"])
    held["asleep"] = (weights(group), moments(group))
    group.save(folder / "saved")
    group.snapshot(folder / "kept")
    fabric.barrier()
    with group.training():
        group.update(ROWS, seed=5)
    group.restore(folder / "kept")
    with group.training():
        group.update(ROWS, seed=6)
    assert (weights(group), moments(group)) == held["asleep"]
    twin = make_groups(fabric, names=("writer",), update=update, agent=AGENT)["writer"]
    twin.load(folder / "saved")
    with twin.training():
        twin.update(ROWS, seed=6)
    with group.offload.present("weights", "optimizer"), twin.offload.present("weights", "optimizer"):
        return {"held": held, "state": state_of(group), "twin": state_of(twin), "steps": group.counters.steps}


def courses(fabric: Fabric, folder: Path) -> dict[str, dict[str, Any]]:
    return {offload: course(fabric, offload, folder / offload) for offload in ("none", "optimizer", "all")}


def test_each_state_holds_what_it_needs_and_learns_the_same(tmp_path: Path) -> None:
    for found in on_ranks(courses, tmp_path, tmp_path / "files", kind="fsdp2"):
        whole = found["none"]["held"]["training"]
        assert set(found["none"]["held"].values()) == {whole} and min(whole) > 0
        assert found["optimizer"]["held"] == {
            "training": whole,
            "rollout": (whole[0], 0),
            "asleep": (whole[0], 0),
        }
        assert found["all"]["held"] == {"training": whole, "rollout": (whole[0], 0), "asleep": (0, 0)}
        for run in found.values():
            assert_equal(run["state"], found["none"]["state"])
            assert_equal(run["twin"], run["state"])


def leaky(fabric: Fabric) -> str:
    """Release what somebody else holds on to."""
    group = make_groups(fabric, names=("writer",), update=UpdateSettings(offload="all"))["writer"]
    group.offload.meter = lambda: 1000
    with pytest.raises(LifecycleError, match="something else holds on to them") as caught:
        group.offload.hold({"weights"})
        group.offload.hold(set())
    return str(caught.value)


def frozen(fabric: Fabric) -> tuple[int, int]:
    """Let the weights of a group that never learns leave the device."""
    group = make_groups(
        fabric,
        names=("writer",),
        update=UpdateSettings(offload="all"),
        binding={"writer": {"trainable": False}},
    )["writer"]
    asleep = weights(group)
    with group.rollout():
        return asleep, weights(group)


def odd(fabric: Fabric) -> bool:
    """Move shares of which the last one is smaller, or nothing at all."""
    group = make_groups(fabric, names=("writer",), update=UpdateSettings(offload="all"))["writer"]
    with group.offload.present("weights"):
        before = {name: own_share(p.detach()).clone() for name, p in group.policy.named_parameters()}
    with group.offload.present("weights"):
        return all(
            torch.equal(own_share(p.detach()), before[name]) for name, p in group.policy.named_parameters()
        )


def rest(fabric: Fabric) -> tuple[str, tuple[int, int], bool]:
    return leaky(fabric), frozen(fabric), odd(fabric)


@pytest.mark.slow
def test_leaks_frozen_weights_and_shares_of_other_sizes(tmp_path: Path) -> None:
    for message, (asleep, awake), same in on_ranks(rest, tmp_path, kind="fsdp2", ranks=3):
        assert "of weights, but only 0.0 MiB became free" in message
        assert asleep == 0 < awake and same
