"""Checkpoints that every rank writes its share of: nothing is gathered, and any number of ranks goes on from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric import Fabric
from torch import Tensor
from torch.distributed.tensor import DTensor

from drmas_pl.agent import Agent
from drmas_pl.errors import CheckpointError
from drmas_pl.models.loading import load_model
from drmas_pl.models.shard_files import has_shards
from drmas_pl.models.value_head import ValueRow
from drmas_pl.testing import tiny_policy
from drmas_pl.tools.export import export
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.strategies import Parallel
from drmas_pl.workers.value_worker import ValueWorker
from tests.helpers.ranks import on_ranks
from tests.helpers.toy import Speaker, make_groups
from tests.integration import test_critic_ranks
from tests.integration.test_shards import assert_equal, group_of, learn, state_of

# the processes of the ranks are started once
pytestmark = pytest.mark.xdist_group("ranks")

ALONE: dict[str, Any] = {"accelerator": "cpu", "devices": 1}


def in_shards(group: Any) -> Any:
    group.settings = replace(group.settings, checkpoint="shards")
    return group


def without_gathering(save: Callable[[Path], None], folder: Path) -> None:
    """Call ``save`` where nobody may ask for a whole tensor."""

    def refuse(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("a whole tensor was put together")

    original = DTensor.full_tensor
    DTensor.full_tensor = refuse  # type: ignore[method-assign]
    try:
        save(folder)
    finally:
        DTensor.full_tensor = original  # type: ignore[method-assign]


def write(fabric: Fabric, folder: Path) -> dict[str, Any]:
    """Learn, write a checkpoint, and learn on."""
    group = in_shards(group_of(fabric))
    learn(group)
    without_gathering(lambda path: group.save(path / "groups" / "writer"), folder)
    saved = state_of(group)
    learn(group)
    return {"saved": saved, "next": state_of(group)}


def read(fabric: Fabric, folder: Path) -> dict[str, Any]:
    """Go on from a checkpoint."""
    group = group_of(fabric)
    group.load(folder / "groups" / "writer")
    found = {"saved": state_of(group), "steps": group.counters.steps, "version": group.engine.weights_version}
    learn(group)
    return {**found, "next": state_of(group)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a checkpoint that two ranks have written in shares, and what it holds."""
    folder = tmp_path_factory.mktemp("written")
    first, second = on_ranks(write, tmp_path_factory.mktemp("ranks"), folder, kind="fsdp2")
    assert_equal(first["saved"], second["saved"])
    return folder, first


def test_every_rank_writes_its_share(written: tuple[Path, dict[str, Any]]) -> None:
    folder = written[0] / "groups" / "writer"
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "generation_config.json", "group.json", "shards", "tokenizer.json"}
    assert not [name for name in names if name.startswith(("model", "optimizer"))] and has_shards(folder)
    sizes = {path.name: path.stat().st_size for path in (folder / "shards").glob("*.distcp")}
    assert sorted(sizes) == ["__0_0.distcp", "__1_0.distcp"]
    assert max(sizes.values()) < 0.6 * sum(sizes.values())


def assert_goes_on(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert_equal(found["saved"], expected["saved"])
    assert (found["steps"], found["version"]) == (1, 1)
    assert_equal(found["next"], expected["next"], atol=1e-6)


def test_one_process_goes_on(written: tuple[Path, dict[str, Any]]) -> None:
    assert_goes_on(read(Fabric(**ALONE), written[0]), written[1])


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 2), ("fsdp2", 3)])
def test_other_ranks_go_on(
    written: tuple[Path, dict[str, Any]], tmp_path: Path, kind: Parallel, ranks: int
) -> None:
    for found in on_ranks(read, tmp_path, written[0], ranks=ranks, kind=kind):
        assert_goes_on(found, written[1])


def test_the_model_is_loaded_and_exported(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, expected = written
    model, tokenizer = load_model(str(folder / "groups" / "writer"))
    expected_weights = {name: tensor for name, tensor in expected["saved"].items() if "/" not in name}
    assert_equal(dict(model.state_dict()), expected_weights)
    assert len(tokenizer) <= model.config.vocab_size and not model.training
    (folder / "manifest.json").write_text(
        json.dumps(
            {
                "iteration": 1,
                "seed": 0,
                "agents": {"writer": "writer"},
                "templates": {"writer": "0"},
                "data": {},
                "state": {},
                "format": 1,
            }
        )
    )
    Speaker("writer").save(folder / "agents" / "writer", model="../../groups/writer")
    assert "writer of" in export(folder, "writer", output=tmp_path / "exported")
    assert_equal(dict(load_model(str(tmp_path / "exported"))[0].state_dict()), expected_weights)
    agent = Agent.load_from_checkpoint(folder / "agents" / "writer")
    assert agent.policy is not None
    assert_equal(dict(agent.policy.state_dict()), expected_weights)


@pytest.mark.parametrize("damage", ["lost", "cut", "metadata"])
def test_damaged_shares_are_checkpoint_errors(
    written: tuple[Path, dict[str, Any]], tmp_path: Path, damage: str
) -> None:
    import shutil

    shutil.copytree(written[0] / "groups" / "writer", tmp_path / "copy")
    share = tmp_path / "copy" / "shards" / ("__1_0.distcp" if damage != "metadata" else ".metadata")
    if damage == "lost":
        share.unlink()
    else:
        share.write_bytes(share.read_bytes()[:100])
    with pytest.raises(
        CheckpointError, match=r"does not fit worker group 'writer'|\.metadata cannot be read"
    ):
        group_of(Fabric(**ALONE)).load(tmp_path / "copy")


def test_shares_of_another_model_are_refused(
    written: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes, message in (
        ({"layers": 1}, "shards are of another model"),
        ({"hidden_size": 16}, "ize mismatch"),
    ):
        monkeypatch.setattr("tests.helpers.toy.load", lambda name, changes=changes: tiny_policy(**changes))
        with pytest.raises(CheckpointError, match=message):
            group_of(Fabric(**ALONE)).load(written[0] / "groups" / "writer")


def teach(fabric: Fabric, folder: Path) -> dict[str, Any]:
    """Teach a critic, write it in shares, and go on with what was written; a place that cannot be written is an error on every rank."""
    critic: ValueWorker = in_shards(test_critic_ranks.build(fabric))
    lines = [
        ValueRow(row, (0.0,) * len(row.response_ids), (1.0,) * len(row.response_ids))
        for row in test_critic_ranks.make_rows()
    ]
    with critic.training():
        critic.update(lines, seed=0)
    without_gathering(critic.save, folder)
    (folder.parent / "blocked").mkdir(exist_ok=True)
    (folder.parent / "blocked" / "shards").touch()
    with pytest.raises(CheckpointError, match=r"shards cannot be written to .*blocked: rank 0: "):
        critic.save(folder.parent / "blocked")
    with critic.training():
        critic.update(lines, seed=1)
    other = test_critic_ranks.build(fabric)
    other.load(folder)
    with other.training():
        other.update(lines, seed=1)
    return {
        "values": critic.values(test_critic_ranks.make_rows()),
        "again": other.values(test_critic_ranks.make_rows()),
    }


def test_critics_are_written_in_shares_too(tmp_path: Path) -> None:
    for found in on_ranks(teach, tmp_path, tmp_path / "critic", kind="fsdp2"):
        assert found["again"] == found["values"]
    assert sorted(path.name for path in (tmp_path / "critic").iterdir()) == ["critic.json", "shards"]
    alone = test_critic_ranks.build(Fabric(**ALONE))
    alone.load(tmp_path / "critic")
    assert alone.counters.steps == 2


def test_a_group_that_is_not_sharded_has_nothing_to_write_in_shares(tmp_path: Path) -> None:
    group: PolicyWorker = in_shards(make_groups(Fabric(**ALONE), names=("writer",))["writer"])
    group.save(tmp_path)
    assert (tmp_path / "model.safetensors").is_file() and not has_shards(tmp_path)
