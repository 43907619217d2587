"""Checkpoints: whole or absent, found by any of their names, refused when they do not fit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.errors import CheckpointError
from drmas_pl.trainer.checkpoint import (
    Manifest,
    find_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    read_manifest,
    save_checkpoint,
)
from drmas_pl.workers.policy_worker import PolicyWorker
from tests.helpers.toy import make_groups

FABRIC = Fabric(accelerator="cpu", devices=1)
DATA = {"train": "abc", "validation": "def"}
MANIFEST = Manifest(
    3, 7, {"writer": "writer", "editor": "editor"}, {"writer": "1", "editor": "2"}, DATA, {"idle": 1}
)


@pytest.fixture
def groups() -> dict[str, PolicyWorker]:
    return make_groups(FABRIC)


@pytest.fixture
def saved(groups: dict[str, PolicyWorker], tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "checkpoints", groups, MANIFEST)


def bias(group: PolicyWorker, value: float) -> None:
    with torch.no_grad():
        next(group.policy.parameters()).fill_(value)


def test_a_checkpoint_has_a_folder_per_group_and_agent(saved: Path) -> None:
    assert saved.name == "iteration-000003"
    found = {str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file()}
    assert {
        f"groups/{name}/{file}"
        for name in ("writer", "editor")
        for file in ("model.safetensors", "optimizer.pt", "group.json")
    } < found
    assert {"manifest.json", "agents/writer/agent.json", "agents/editor/agent.json"} < found
    assert (saved.parent / "last").read_text() == "iteration-000003"


def test_the_manifest_comes_back(saved: Path) -> None:
    assert read_manifest(saved) == MANIFEST


@pytest.mark.parametrize("name", ["", "checkpoints", "checkpoints/iteration-000003"])
def test_a_checkpoint_is_found_by_run_folder_or_by_its_own(saved: Path, name: str) -> None:
    assert find_checkpoint(str(saved.parents[1] / name)) == saved


def test_no_checkpoint_is_an_error_that_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"no checkpoint in .*; expected a run folder, its checkpoints folder, or a folder holding",
    ):
        find_checkpoint(tmp_path)


def test_a_pointer_to_a_deleted_checkpoint_is_no_checkpoint(saved: Path) -> None:
    shutil.rmtree(saved)
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        find_checkpoint(saved.parents[1])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"iteration": 1}', '{"surprise": 1}'])
def test_a_damaged_manifest_is_a_checkpoint_error(saved: Path, text: str) -> None:
    (saved / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"cannot be read .*; choose another one of the run"):
        read_manifest(saved)


def test_another_format_is_refused(saved: Path) -> None:
    record = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, expected 1; use the version that wrote it"):
        read_manifest(saved)


def test_every_group_gets_its_own_weights_back_in_any_order(
    groups: dict[str, PolicyWorker], tmp_path: Path
) -> None:
    for value, name in enumerate(groups):
        bias(groups[name], value)
    path = save_checkpoint(tmp_path, groups, MANIFEST)
    turned = make_groups(FABRIC, names=("editor", "writer"))
    assert load_checkpoint(path, turned, data=DATA) == MANIFEST
    for name, group in groups.items():
        assert torch.equal(next(group.policy.parameters()), next(turned[name].policy.parameters()))


def test_other_agents_or_sharing_are_refused(saved: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"binds agents to groups as .*'writer': 'writer'.*, but this run as .*'shared'"
    ):
        load_checkpoint(saved, make_groups(FABRIC, sharing="shared"), data=DATA)


def test_changed_data_is_refused_unless_allowed(saved: Path, groups: dict[str, PolicyWorker]) -> None:
    other = {**DATA, "validation": "xyz"}
    with pytest.raises(
        CheckpointError, match=r"validation changed since .* or set trainer.allow_changed_data=true"
    ):
        load_checkpoint(saved, groups, data=other)
    load_checkpoint(saved, groups, data=other, allow_changed_data=True)
    load_checkpoint(saved, groups, data={})


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_weights_are_refused(saved: Path, groups: dict[str, PolicyWorker], damage: str) -> None:
    file = saved / "groups" / "writer" / "model.safetensors"
    file.unlink() if damage == "missing" else file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="does not fit worker group 'writer'"):
        load_checkpoint(saved, groups, data=DATA)


def break_second_group(monkeypatch: pytest.MonkeyPatch) -> None:
    save = PolicyWorker.save

    def failing(group: PolicyWorker, folder: Path) -> None:
        save(group, folder)
        if group.name == "editor":
            raise OSError("disk full")

    monkeypatch.setattr(PolicyWorker, "save", failing)


def break_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_ = os.replace

    def failing(source: Path, target: Path) -> None:
        if Path(source).name.startswith(".writing-iteration"):
            raise OSError("killed")
        replace_(source, target)

    monkeypatch.setattr("drmas_pl.trainer.checkpoint.os.replace", failing)


@pytest.mark.parametrize("fault", [break_second_group, break_rename])
def test_an_interrupted_write_leaves_the_previous_checkpoint_intact(
    saved: Path,
    groups: dict[str, PolicyWorker],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
) -> None:
    fault(monkeypatch)
    with pytest.raises(OSError, match=r"disk full|killed"):
        save_checkpoint(saved.parent, groups, replace(MANIFEST, iteration=4))
    monkeypatch.undo()
    assert find_checkpoint(saved.parents[1]) == saved
    load_checkpoint(saved, groups, data=DATA)
    again = save_checkpoint(saved.parent, groups, replace(MANIFEST, iteration=4))
    assert find_checkpoint(saved.parents[1]) == again and not list(saved.parent.glob(".writing-*"))


def test_an_interrupted_write_of_the_same_iteration_loses_nothing(
    saved: Path, groups: dict[str, PolicyWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rename(monkeypatch)
    with pytest.raises(OSError, match="killed"):
        save_checkpoint(saved.parent, groups, replace(MANIFEST, state={"idle": 2}))
    monkeypatch.undo()
    assert read_manifest(find_checkpoint(saved.parents[1])).state in ({"idle": 1}, {"idle": 2})


def test_a_rewritten_checkpoint_replaces_the_earlier_one(
    saved: Path, groups: dict[str, PolicyWorker]
) -> None:
    (saved / "leftover").touch()
    save_checkpoint(saved.parent, groups, replace(MANIFEST, state={"idle": 2}))
    assert read_manifest(saved).state == {"idle": 2} and not (saved / "leftover").exists()
    assert sorted(path.name for path in saved.parent.iterdir()) == ["iteration-000003", "last"]


def test_pruning_keeps_what_it_is_told_to(tmp_path: Path) -> None:
    for name in (
        "iteration-000001",
        "iteration-000002",
        "iteration-000003",
        ".writing-iteration-000002",
        "other",
    ):
        (tmp_path / name).mkdir()
    prune_checkpoints(tmp_path, {"iteration-000002"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-000002", "other"]
