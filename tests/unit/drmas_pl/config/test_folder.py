"""The run folder before the trainer has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from drmas_pl.config.folder import ConfigFile, check_folder
from drmas_pl.errors import CheckpointError, ConfigError, FolderInUse, StorageError
from drmas_pl.utils.folder_lock import FolderLock


def test_a_folder_that_holds_a_run_is_not_mixed_with_another(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    check_folder(str(tmp_path), None)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last").touch()
    with pytest.raises(ConfigError, match=r"already holds a run; go on with resume="):
        check_folder(str(tmp_path), None)


def test_a_folder_in_use_is_refused_before_models_are_loaded(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        for resume in (None, str(tmp_path)):
            with pytest.raises(FolderInUse, match=r"is in use by process \d+ on"):
                check_folder(str(tmp_path), resume)


def test_the_checkpoint_to_go_on_from_must_be_readable(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        check_folder(str(tmp_path / "new"), str(tmp_path / "nowhere"))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        check_folder(str(tmp_path / "new"), str(tmp_path))


def test_the_configuration_is_written_when_the_run_begins(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = {"output_dir": str(folder), "lr": 1e-6, "text": "µ", "none": None}
    file = ConfigFile(config)
    assert not folder.exists()
    file.on_validation_start(None, None)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == config
    (folder / "config.yaml").write_text("old")
    ConfigFile(config).on_train_start(None, None)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == config


def test_another_configuration_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    config = {"output_dir": str(tmp_path), "lr": 1.0, "resume": None}
    for lr, iteration in ((1.0, 0), (2.0, 3), (3.0, 3), (3.0, 3)):
        more = {"lr": lr, "resume": str(tmp_path) if iteration else None}
        ConfigFile({**config, **more}, iteration=iteration).on_train_start(None, None)
    kept = {path.name: yaml.safe_load(path.read_text())["lr"] for path in tmp_path.iterdir()}
    assert kept == {
        "config.yaml": 3.0,
        "config-until-iteration-000003.yaml": 1.0,
        "config-until-iteration-000003-2.yaml": 2.0,
    }


def test_a_device_in_the_place_of_the_configuration_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device"):
        ConfigFile({"output_dir": str(tmp_path)}).on_train_start(None, None)
