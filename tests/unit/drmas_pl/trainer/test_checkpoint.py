"""Checkpoints: whole or absent, found by any of their names, refused when they do not fit."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from drmas_pl.errors import CheckpointError, NonFiniteWeights, StorageError
from drmas_pl.trainer.checkpoint import (
    find_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from drmas_pl.utils.checkpoint_damage import read_checked
from drmas_pl.utils.manifest import Manifest, read_manifest
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
    assert replace(read_manifest(saved), files={}) == MANIFEST


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
    with pytest.raises(
        CheckpointError,
        match=r"no checkpoint in .*iteration-000003, which is not there; there is no other whole one .* new run",
    ):
        find_checkpoint(saved.parents[1])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"iteration": 1}', '{"surprise": 1}'])
def test_a_damaged_manifest_is_a_checkpoint_error(saved: Path, text: str) -> None:
    (saved / "manifest.json").write_text(text)
    with pytest.raises(
        CheckpointError, match=r"cannot be read \(manifest.json: .*\); there is no other whole one"
    ):
        read_checked(saved)


def test_another_format_is_refused(saved: Path) -> None:
    record = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, expected 2; use the version that wrote it"):
        read_manifest(saved)


def test_every_group_gets_its_own_weights_back_in_any_order(
    groups: dict[str, PolicyWorker], tmp_path: Path
) -> None:
    for value, name in enumerate(groups):
        bias(groups[name], value)
    path = save_checkpoint(tmp_path, groups, MANIFEST)
    turned = make_groups(FABRIC, names=("editor", "writer"))
    assert replace(load_checkpoint(path, turned, data=DATA), files={}) == MANIFEST
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


def test_every_flipped_bit_and_every_missing_file_is_noticed_and_the_whole_one_is_named(
    saved: Path, groups: dict[str, PolicyWorker]
) -> None:
    damaged = save_checkpoint(saved.parent, groups, replace(MANIFEST, iteration=4))
    names = sorted(read_manifest(damaged).files)
    assert set(names) == {str(file.relative_to(damaged)) for file in damaged.rglob("*") if file.is_file()} - {
        "manifest.json"
    }
    remedy = re.escape(f"the newest whole one is iteration-000003, go on from it with resume={saved}")
    for name in names:
        content = (damaged / name).read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for broken, damage in (
            (bytes(flipped), "is not what was written"),
            (content[:-1], "bytes instead of"),
        ):
            (damaged / name).write_bytes(broken)
            with pytest.raises(CheckpointError, match=rf"damaged: {re.escape(name)} .*{damage}.*; {remedy}"):
                load_checkpoint(damaged, groups, data=DATA)
        (damaged / name).unlink()
        with pytest.raises(CheckpointError, match=rf"damaged: {re.escape(name)} is missing; {remedy}"):
            read_checked(damaged, content=False)
        (damaged / name).write_bytes(content)
    load_checkpoint(damaged, groups, data=DATA)


def test_without_another_whole_checkpoint_that_is_said(saved: Path, groups: dict[str, PolicyWorker]) -> None:
    (saved / "groups/writer/model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"has 0 bytes instead of \d+; there is no other whole one in"):
        load_checkpoint(saved, groups, data=DATA)


def test_a_checkpoint_of_an_earlier_version_is_read_and_its_lack_of_checksums_told(
    saved: Path, groups: dict[str, PolicyWorker], caplog: pytest.LogCaptureFixture
) -> None:
    record = json.loads((saved / "manifest.json").read_text())
    earlier = {name: value for name, value in record.items() if name not in ("files", "run_id")}
    (saved / "manifest.json").write_text(json.dumps({**earlier, "format": 1}))
    with caplog.at_level("WARNING", "drmas_pl"):
        assert load_checkpoint(saved, groups, data=DATA).iteration == 3
    assert "has no checksums, since an earlier version wrote it" in caplog.text
    file = saved / "groups/writer/model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="does not fit worker group 'writer'"):
        load_checkpoint(saved, groups, data=DATA)


def test_the_newest_checkpoint_is_found_where_a_crash_came_before_the_pointer(
    saved: Path, groups: dict[str, PolicyWorker]
) -> None:
    newer = save_checkpoint(saved.parent, groups, replace(MANIFEST, iteration=12))
    (saved.parent / "last").unlink()
    assert find_checkpoint(saved.parents[1]) == newer


@pytest.mark.parametrize("pointer", [b"", b"\xff\xfe", b"../../elsewhere", b"iteration-000009"])
def test_a_pointer_that_leads_nowhere_names_the_whole_one(saved: Path, pointer: bytes) -> None:
    (saved.parent / "last").write_bytes(pointer)
    with pytest.raises(CheckpointError, match=r"last names .*the newest whole one is iteration-000003"):
        find_checkpoint(saved.parents[1])


def test_a_pointer_that_is_a_named_pipe_is_not_waited_for(saved: Path) -> None:
    (saved.parent / "last").unlink()
    os.mkfifo(saved.parent / "last")
    with pytest.raises(CheckpointError, match=r"last names what is no file, .*whole one is iteration-000003"):
        find_checkpoint(saved.parents[1])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_never_take_the_place_of_good_ones(
    saved: Path, groups: dict[str, PolicyWorker], value: float
) -> None:
    good = {file: file.read_bytes() for file in saved.rglob("*") if file.is_file()}
    bias(groups["editor"], value)
    for iteration in (3, 4):
        with pytest.raises(
            NonFiniteWeights,
            match=r"not finite any more \(groups/editor: .*earlier checkpoint with a lower optimizer.lr",
        ):
            save_checkpoint(saved.parent, groups, replace(MANIFEST, iteration=iteration))
    assert {file: file.read_bytes() for file in saved.rglob("*") if file.is_file()} == good
    assert sorted(path.name for path in saved.parent.iterdir()) == ["iteration-000003", "last"]


def test_files_and_folders_are_on_the_disk_before_the_checkpoint_has_its_name(
    groups: dict[str, PolicyWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    fsync, replace_ = os.fsync, os.replace

    def noted(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}").partition("/.writing-iteration-000003")[2])
        fsync(handle)

    def renamed(source: Path, target: Path) -> None:
        if Path(target).name == "iteration-000003":
            flushed.append("renamed")
        replace_(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", renamed)
    path = save_checkpoint(tmp_path, groups, MANIFEST)
    before = set(flushed[: flushed.index("renamed")])
    everything = {str(entry).removeprefix(str(path)) for entry in path.rglob("*")} - {"/manifest.json"}
    assert everything <= before and any("manifest.json" in name for name in before)


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


def test_a_rewritten_checkpoint_replaces_the_earlier_one_and_keeps_notes_in_it(
    saved: Path, groups: dict[str, PolicyWorker]
) -> None:
    (saved / "groups/writer/notes.txt").write_text("mine")
    save_checkpoint(saved.parent, groups, replace(MANIFEST, state={"idle": 2}))
    assert read_manifest(saved).state == {"idle": 2}
    assert (saved / "groups/writer/notes.txt").read_text() == "mine"
    assert sorted(path.name for path in saved.parent.iterdir()) == ["iteration-000003", "last"]


def test_what_somebody_else_has_put_in_the_place_of_a_checkpoint_stays(
    groups: dict[str, PolicyWorker], tmp_path: Path
) -> None:
    mine = tmp_path / "iteration-000003"
    mine.mkdir()
    (mine / "thesis.txt").write_text("months")
    with pytest.raises(
        StorageError, match=r"iteration-000003: it was not written by this run; move it elsewhere"
    ):
        save_checkpoint(tmp_path, groups, MANIFEST)
    assert (mine / "thesis.txt").read_text() == "months" and not list(tmp_path.glob(".*"))


def test_pruning_deletes_only_what_the_run_has_written(
    groups: dict[str, PolicyWorker], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    for iteration in (1, 2, 3, 4):
        save_checkpoint(folder, groups, replace(MANIFEST, iteration=iteration, run_id="mine"))
    save_checkpoint(folder, groups, replace(MANIFEST, iteration=5, run_id="another's"))
    shutil.copytree(folder / "iteration-000001", folder / "iteration-000001-keep")
    shutil.copytree(folder / "iteration-000001", folder / "iteration-000008")
    (folder / "iteration-000003" / "notes.txt").touch()
    (folder / "iteration-000009").touch()
    (folder / "iteration-000010").symlink_to(folder / "iteration-000001-keep")
    (folder / "iteration-000011").mkdir()
    for name in (".writing-iteration-000006", ".replaced-iteration-000002", ".deleted-iteration-000001"):
        (folder / name).mkdir()
    (folder / ".writing-iteration-notes").mkdir()
    prune_checkpoints(folder, {"iteration-000002"}, run_id="mine")
    assert sorted(path.name for path in folder.iterdir()) == [
        ".writing-iteration-notes",
        "iteration-000001-keep",
        "iteration-000002",
        "iteration-000003",
        "iteration-000005",
        "iteration-000008",
        "iteration-000009",
        "iteration-000010",
        "iteration-000011",
        "last",
    ]
    assert read_manifest(folder / "iteration-000010").iteration == 1


def test_a_checkpoint_is_renamed_before_it_is_deleted(
    groups: dict[str, PolicyWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, groups, MANIFEST)
    deleted: list[Path] = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **how: deleted.append(path))
    prune_checkpoints(tmp_path, ())
    assert deleted[-1].name == ".deleted-iteration-000003" and deleted[-1].is_dir()
    assert not (tmp_path / "iteration-000003").exists()
