"""Problems that were slow to draw, kept between runs as JSON in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from drmas_pl.types import Task
from drmas_pl.utils.atomic import write_atomically

log = logging.getLogger(__name__)


class CachedTasks:
    """The file that holds the problems of one data set drawn with certain settings by the installed version of the library.

    The folder is ``$DRMAS_CACHE``, or ``drmas_pl`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Args:
        task: Name of the data set.
        drawing: All that decides which problems are drawn.
    """

    def __init__(self, task: str, drawing: Mapping[str, Any]) -> None:
        try:
            version = metadata.version("reasoning-gym")
        except metadata.PackageNotFoundError:
            version = ""
        key = json.dumps([task, version, drawing], sort_keys=True, default=repr)
        name = f"{task}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        self.path = _folder() / "reasoning_gym" / name

    def read(self) -> tuple[Task, ...] | None:
        """Return what was kept, or None if there is nothing, or nothing that can be read."""
        try:
            records = json.loads(self.path.read_text())
            return tuple(Task(**{**record, "reference": tuple(record["reference"])}) for record in records)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("problems kept in %s cannot be read and are drawn again: %s", self.path, error)
            return None

    def write(self, tasks: Sequence[Task]) -> None:
        """Keep problems whose records are the same after a way through JSON; others, and a folder that is read-only, are left alone."""
        records = [{**asdict(task), "reference": list(task.reference)} for task in tasks]
        try:
            text = json.dumps(records)
            if json.loads(text) == records:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self.path, text)
        except (OSError, TypeError, ValueError) as error:
            log.info("problems are not kept in %s: %s", self.path, error)


def _folder() -> Path:
    own = os.environ.get("DRMAS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drmas_pl"
