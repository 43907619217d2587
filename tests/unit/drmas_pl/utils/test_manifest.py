"""Manifests: every entry is checked before it is used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.errors import CheckpointError
from drmas_pl.utils.checksums import FileMark
from drmas_pl.utils.manifest import Manifest, checkpoint_names, read_manifest, seal_record

GOOD = Manifest(
    3,
    7,
    {"writer": "shared", "editor": "shared"},
    {"writer": "1", "editor": "2"},
    {"train data": "abc"},
    {"iteration": 3, "best": 0.5, "best_at": 2, "evaluations": [{"iteration": 0}]},
    run_id="r",
    files={"groups/shared/model.safetensors": FileMark(3, "ab")},
)


def write(folder: Path, **changes: Any) -> Path:
    (folder / "manifest.json").write_text(seal_record({**json.loads(GOOD.to_json()), **changes}))
    return folder


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    assert read_manifest(write(tmp_path)) == GOOD


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iteration": -1}, "iteration must be a whole number of at least 0, got -1"),
        ({"iteration": True}, "iteration must be"),
        ({"iteration": 3.0}, "iteration must be"),
        ({"iteration": 4}, "state.iteration must be 4, got 3"),
        ({"seed": "7"}, "seed must be a whole number, got '7'"),
        ({"agents": {}}, "agents must be worker groups by agent name"),
        ({"agents": {"writer": "../../../etc", "editor": "shared"}}, "agents must be"),
        ({"agents": {"writer": "..", "editor": "shared"}}, "agents must be"),
        ({"agents": {"writer": "shared"}}, "agents and templates name different agents"),
        ({"agents": ["writer"]}, "agents must be"),
        ({"templates": {"writer": 1, "editor": "2"}}, "templates must be texts by agent name"),
        ({"data": None}, "data must be texts by name, got None"),
        ({"state": []}, "state must be a mapping"),
        ({"state": {"surprise": 1}}, "state.surprise is unknown"),
        ({"state": {"idle": -1}}, "state.idle must be"),
        ({"state": {"best": float("nan")}}, "state.best must be a finite number, got nan"),
        ({"state": {"best_at": 1}}, "state.best is missing"),
        ({"state": {"seconds_before": float("inf")}}, "state.seconds_before must be"),
        ({"state": {"evaluations": [{}]}}, "state.evaluations must be a list of scores"),
        ({"state": {"estimator": 0}}, "state.estimator must be a mapping"),
        ({"format": "2"}, "format must be a whole number"),
        ({"run_id": 5}, "run_id must be a text"),
        ({"files": {}}, "files is empty"),
        ({"files": {"/etc/passwd": {"size": 1, "sha256": ""}}}, "files must be lengths and checksums"),
        ({"files": {"../x": {"size": 1, "sha256": ""}}}, "files must be"),
        ({"files": {"x": {"size": -1, "sha256": ""}}}, "files must be"),
        ({"files": {"x": {"size": 1}}}, "files must be"),
        ({"surprise": 1}, "entry 'surprise' is unknown"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_entry(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=f"manifest.json: {message}"):
        read_manifest(write(tmp_path, **changes))


def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    content = (write(tmp_path) / "manifest.json").read_bytes()
    for place in range(len(content) - 1):
        for bit in (1, 4, 32):
            flipped = bytearray(content)
            flipped[place] ^= bit
            (tmp_path / "manifest.json").write_bytes(flipped)
            try:
                found = read_manifest(tmp_path)
            except CheckpointError:
                continue
            # a space that became another kind of space says the same
            assert found == GOOD and content[place] in b" \n"


def test_a_changed_entry_that_makes_sense_is_noticed_by_the_checksum(tmp_path: Path) -> None:
    record = json.loads(GOOD.to_json())
    (tmp_path / "manifest.json").write_text(json.dumps({**record, "seed": 8}))
    with pytest.raises(CheckpointError, match=r"manifest\.json: it is not what was written"):
        read_manifest(tmp_path)


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    record = json.loads(GOOD.to_json())
    for name in ("iteration", "seed", "agents", "templates", "data", "format"):
        short = {key: value for key, value in record.items() if key != name}
        (tmp_path / "manifest.json").write_text(json.dumps(short))
        with pytest.raises(CheckpointError, match=f"manifest.json: {name} is missing"):
            read_manifest(tmp_path)


def test_a_deeply_nested_manifest_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_manifest(tmp_path)


def test_a_manifest_that_is_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(CheckpointError, match=r"manifest\.json: it is no file"):
        read_manifest(tmp_path)


def test_folders_called_like_checkpoints_come_newest_first(tmp_path: Path) -> None:
    for name in ("iteration-000002", "iteration-000010", "iteration-1000000", "iteration-000003-keep"):
        (tmp_path / name).mkdir()
    (tmp_path / "iteration-000011").touch()
    (tmp_path / "iteration-000012").symlink_to(tmp_path / "iteration-000002")
    names = [path.name for path in checkpoint_names(tmp_path)]
    assert names == ["iteration-1000000", "iteration-000010", "iteration-000002"]
    assert list(checkpoint_names(tmp_path / "nowhere")) == []
