"""What sharded groups write fits groups that are not, and the other way round; states that are kept fit themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from safetensors.torch import load_file
from torch import Tensor

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.optim import named_state
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.shards import is_sharded, whole_state, whole_weights
from tests.helpers.ranks import on_ranks
from tests.helpers.toy import make_groups

# the processes of the ranks are started once
pytestmark = pytest.mark.xdist_group("ranks")

ROWS = {"writer": [TrainingRow("writer", (5, 6, 7 + n), (8, 9), (-5.0, -5.0), (-1.0) ** n) for n in range(4)]}


def group_of(fabric: Fabric) -> PolicyWorker:
    return make_groups(fabric, names=("writer",))["writer"]


def learn(group: PolicyWorker) -> None:
    with group.training():
        group.update(ROWS, seed=0)


def state_of(group: PolicyWorker) -> dict[str, Tensor]:
    """Return weights and optimizer state under flat names."""
    assert group.optimizer is not None
    found = whole_weights(group.policy, keep=True)
    state = whole_state(named_state(group.policy, group.optimizer), keep=True)
    found |= {f"{name}/{key}": value for name, values in state.items() for key, value in values.items()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor], *, atol: float = 0.0) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.allclose(tensor, second[name], rtol=0.0, atol=atol), name


def sharded(fabric: Fabric, folder: Path) -> dict[str, Any]:
    """Start from an unsharded checkpoint, learn, write a checkpoint, keep the state, learn on, and go back."""
    group = group_of(fabric)
    assert is_sharded(group.policy)
    group.load(folder / "plain")
    loaded = state_of(group)
    learn(group)
    group.save(folder / "sharded")
    group.snapshot(folder / "kept")
    fabric.barrier()
    kept = state_of(group)
    learn(group)
    moved = state_of(group)
    group.restore(folder / "kept")
    return {
        "loaded": loaded,
        "kept": kept,
        "moved": moved,
        "restored": state_of(group),
        "steps": group.counters.steps,
        "engine": group.engine.weights_version,
    }


def test_checkpoints_and_kept_states_of_a_sharded_group(tmp_path: Path) -> None:
    plain = group_of(Fabric(accelerator="cpu", devices=1))
    learn(plain)
    plain.save(tmp_path / "plain")
    start = state_of(plain)
    learn(plain)
    for found in on_ranks(sharded, tmp_path, tmp_path, kind="fsdp2"):
        assert_equal(found["loaded"], start)
        assert_equal(found["kept"], state_of(plain), atol=1e-6)
        assert_equal(found["restored"], found["kept"])
        assert (found["steps"], found["engine"]) == (2, 2)
        name = "model.norm.weight"
        assert not torch.equal(found["moved"][name], found["kept"][name])
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["rank0.pt", "rank1.pt"]
    assert (
        load_file(tmp_path / "sharded" / "model.safetensors").keys()
        == load_file(tmp_path / "plain" / "model.safetensors").keys()
    )
    assert json.loads((tmp_path / "sharded" / "group.json").read_text())["steps"] == 2
    other = group_of(Fabric(accelerator="cpu", devices=1))
    other.load(tmp_path / "sharded")
    assert_equal(state_of(other), state_of(plain), atol=1e-6)


def test_one_rank_keeps_the_state_of_a_group_that_is_not_sharded(tmp_path: Path) -> None:
    group = group_of(Fabric(accelerator="cpu", devices=1))
    group.snapshot(tmp_path)
    start = state_of(group)
    learn(group)
    group.restore(tmp_path)
    assert_equal(state_of(group), start)
    assert (group.counters.steps, group.weights_version) == (0, 0) and [
        path.name for path in tmp_path.iterdir()
    ] == ["rank0.pt"]
