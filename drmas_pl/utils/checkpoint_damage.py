"""Whether a checkpoint is what was written, and which one is, where it is not.

Whoever reads a checkpoint asks here first: runs that go on, evaluations, exports and agents that are loaded.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from drmas_pl.errors import CheckpointError
from drmas_pl.utils.checksums import find_damage
from drmas_pl.utils.manifest import Manifest, checkpoint_names, read_manifest

log = logging.getLogger(__name__)


def check_checkpoint(
    path: Path, manifest: Manifest, *, content: bool = True, parts: Sequence[str] = ()
) -> None:
    """Make sure that every file of a checkpoint is what was written.

    Args:
        path: Checkpoint folder.
        manifest: Its manifest; one of an earlier version says nothing about files, which is told.
        content: Whether to read the files; otherwise only their lengths are compared, which takes no time.
        parts: Folders in it whose files alone are checked, such as ``groups/shared``; all files if empty.

    Raises:
        CheckpointError: A file is damaged or missing.
    """
    if not manifest.files:
        if content:
            log.warning(
                "checkpoint %s has no checksums, since an earlier version wrote it; damage is not noticed",
                path,
            )
        return
    wanted = tuple(f"{part}/" for part in parts) or ("",)
    marks = {name: mark for name, mark in manifest.files.items() if name.startswith(wanted)}
    damage = find_damage(path, marks, content=content)
    if damage is not None:
        raise CheckpointError(
            f"checkpoint {path} is damaged: {damage}; {other_checkpoint(path.parent, but=path.name)}"
        )


def read_checked(path: Path, *, content: bool = True, parts: Sequence[str] = ()) -> Manifest:
    """Read a checkpoint's manifest and check its files, see :func:`check_checkpoint`.

    Raises:
        CheckpointError: The manifest or a file is damaged; the newest whole checkpoint beside it is named.
    """
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {other_checkpoint(path.parent, but=path.name)}") from error
    check_checkpoint(path, manifest, content=content, parts=parts)
    return manifest


def other_checkpoint(folder: Path, *, but: str = "") -> str:
    """Say how to go on without the checkpoint called ``but``, which is damaged: from the newest whole one in ``folder``."""
    for path in checkpoint_names(folder):
        if path.name != but and _is_whole(path):
            return f"the newest whole one is {path.name}, go on from it with {shlex.quote(f'resume={path}')}"
    return f"there is no other whole one in {folder}, so start a new run"


def _is_whole(path: Path) -> bool:
    try:
        return find_damage(path, read_manifest(path).files) is None
    except CheckpointError:
        return False
