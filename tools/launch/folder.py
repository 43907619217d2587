"""What a program does about the run folder before the trainer has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.callbacks import Callback

from drmas_pl.atomic import write_atomically
from drmas_pl.errors import ConfigError
from drmas_pl.storage import writing
from drmas_pl.trainer.checkpoint import find_checkpoint, read_manifest
from drmas_pl.trainer.folder import RunFolder


def check_folder(output_dir: str, resume: str | None) -> None:
    """Make sure that the checkpoint to go on from can be read, and that no other run lives in the folder.

    Raises:
        CheckpointError: There is no readable checkpoint.
        ConfigError: The folder holds another run.
    """
    if resume is not None:
        read_manifest(find_checkpoint(resume))
    elif RunFolder(output_dir).metrics.exists():
        raise ConfigError(
            f"output_dir={output_dir} already holds a run; go on with resume={output_dir}, or choose another folder"
        )


class ConfigFile(Callback):
    """Writes ``config.yaml`` once the run has really begun, so that a refused one leaves nothing behind and spoils nothing.

    Args:
        config: Resolved configuration.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.path = Path(config["output_dir"]) / "config.yaml"
        self.text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Write before the first validation of a new run."""
        self._write()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Write before the first iteration of a resumed run."""
        self._write()

    def _write(self) -> None:
        if not self.path.exists() or self.path.read_text() != self.text:
            with writing("the configuration", self.path):
                write_atomically(self.path, self.text)
