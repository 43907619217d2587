"""The run folder before the trainer has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.tools.launch.folder import ConfigFile, check_folder


def test_a_folder_that_holds_a_run_is_not_mixed_with_another(tmp_path: Path) -> None:
    check_folder(str(tmp_path), None)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"already holds a run; go on with resume="):
        check_folder(str(tmp_path), None)


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
