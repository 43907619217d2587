"""What a checkpoint says about itself, and where a run's newest one is; needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drmas_pl.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says about itself.

    Attributes:
        iteration: Completed iterations.
        seed: Run seed.
        agents: Worker group by agent name.
        templates: Hash of each agent's prompt template.
        data: What decides the run's tasks and prompts: fingerprints by name.
        state: Further trainer state: evaluations so far and counters.
        format: Version of this layout.
    """

    iteration: int
    seed: int
    agents: Mapping[str, str]
    templates: Mapping[str, str]
    data: Mapping[str, str]
    state: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def find_checkpoint(path: str | Path) -> Path:
    """Return the checkpoint folder meant by ``path``: a checkpoint, a ``checkpoints`` folder or a run folder (its last one).

    Raises:
        CheckpointError: There is none.
    """
    start = Path(path)
    for candidate in (start, start / "checkpoints"):
        if (candidate / MANIFEST).is_file():
            return candidate
        pointer = candidate / "last"
        if pointer.is_file():
            newest = candidate / pointer.read_text().strip()
            for whole in (newest, aside(newest)):
                if (whole / MANIFEST).is_file():
                    return whole
    raise CheckpointError(
        f"no checkpoint in {start}; expected a run folder, its checkpoints folder, or a folder holding {MANIFEST}"
    )


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest.

    Raises:
        CheckpointError: It is missing, damaged or of another format.
    """
    try:
        record = json.loads((path / MANIFEST).read_text())
        manifest = Manifest(**record)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({error}); choose another one of the run"
        ) from error
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {manifest.format}, expected {FORMAT}; use the version that wrote it"
        )
    return manifest


def aside(target: Path) -> Path:
    """Return where a checkpoint is kept while a new one takes its name."""
    return target.with_name(f".replaced-{target.name}")
