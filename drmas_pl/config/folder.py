"""What a program does about the run folder before the trainer has it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.callbacks import Callback

from drmas_pl.errors import ConfigError
from drmas_pl.trainer.checkpoint import find_checkpoint, holds_checkpoint
from drmas_pl.utils.atomic import write_atomically
from drmas_pl.utils.checkpoint_damage import read_checked
from drmas_pl.utils.folder_lock import check_free
from drmas_pl.utils.storage import writing


def check_folder(output_dir: str, resume: str | None) -> None:
    """Make sure that the checkpoint to go on from can be read, and that no other run lives in the folder.

    Raises:
        CheckpointError: There is no readable checkpoint.
        ConfigError: The folder holds another run.
        FolderInUse: A process writes into it.
    """
    check_free(Path(output_dir))
    if resume is not None:
        read_checked(find_checkpoint(resume), content=False)
    elif holds_checkpoint(Path(output_dir)):
        raise ConfigError(
            f"output_dir={output_dir} already holds a run; go on with resume={output_dir}, or choose another folder"
        )


class ConfigFile(Callback):
    """Writes ``config.yaml`` once the run has really begun, so that a refused one leaves nothing behind and spoils nothing.

    A file that said something else is kept as ``config-until-iteration-<n>.yaml``.

    Args:
        config: Resolved configuration.
        iteration: Iterations that were played with the configuration that is there.
    """

    def __init__(self, config: Mapping[str, Any], *, iteration: int = 0) -> None:
        self.path = Path(config["output_dir"]) / "config.yaml"
        self.config = dict(config)
        self.iteration = iteration

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Write before the first validation of a new run."""
        self._write()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Write before the first iteration of a resumed run."""
        self._write()

    def _write(self) -> None:
        with writing("the configuration", self.path):
            # a device has no end
            if self.path.is_file():
                text = self.path.read_text()
                if _same_settings(text, self.config):
                    return
                write_atomically(self._free_name(), text)
            text = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
            write_atomically(self.path, text)

    def _free_name(self) -> Path:
        """Return a name for the old file that no other one has."""
        names = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        paths = (
            self.path.with_name(f"config-until-iteration-{self.iteration:06d}{name}.yaml") for name in names
        )
        return next(path for path in paths if not path.exists())


def _same_settings(text: str, config: Mapping[str, Any]) -> bool:
    """Tell whether a configuration file says the same, whatever its run went on from."""
    try:
        written = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return isinstance(written, dict) and {**written, "resume": None} == {**config, "resume": None}
