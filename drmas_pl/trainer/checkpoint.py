"""Checkpoints: one folder per worker group and per agent, and a manifest keyed by name.

::

    checkpoints/iteration-000090/
        manifest.json             iteration, seed, data fingerprints, which agent belongs to which group, trainer state, checksums
        groups/<group>/           Transformers folder, optimizer.pt, group.json; shards/ instead of weights and optimizer.pt where ranks
                                  of a sharded group have written their own
        agents/<agent>/agent.json settings of the agent; Agent.load_from_checkpoint reads this folder
        critics/<critic>/         model.safetensors, optimizer.pt, critic.json; where agents are trained with critics
        callbacks.pt              states of callbacks, where there are any
        ahead/                    what has been played for iterations to come, with rollout.max_staleness above 0
    checkpoints/last              name of the newest checkpoint

A checkpoint is written beside its final name, flushed to the disk and renamed, so a folder with that name is always whole. One that is
written again is moved aside and deleted last, so that a crash at any moment leaves a whole one. One that is dropped is renamed before it
is deleted, and only what this run has written is dropped.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drmas_pl.errors import CheckpointError, NonFiniteWeights, StorageError
from drmas_pl.utils.atomic import flush_folder, write_atomically
from drmas_pl.utils.checkpoint_damage import other_checkpoint, read_checked
from drmas_pl.utils.checksums import seal_files
from drmas_pl.utils.manifest import MANIFEST, Manifest, checkpoint_names, read_manifest
from drmas_pl.utils.storage import writing

if TYPE_CHECKING:
    # the programs read manifests before they load torch
    from drmas_pl.rollout.played_ahead import PlayedAhead
    from drmas_pl.workers.protocols import PolicyWorkers, ValueWorkers

log = logging.getLogger(__name__)
PLAYED_AHEAD = "ahead"
CALLBACKS = "callbacks.pt"
POINTER = "last"
# What crashes leave of checkpoints that were being written, replaced or deleted.
_LEFTOVER = re.compile(r"\.(writing|replaced|deleted)-iteration-\d{6,}")


def find_checkpoint(path: str | Path) -> Path:
    """Return the checkpoint folder meant by ``path``: a checkpoint, a ``checkpoints`` folder or a run folder (its last one).

    Raises:
        CheckpointError: There is none, or the last one is gone.
    """
    start = Path(path)
    for folder in (start, start / "checkpoints"):
        if (folder / MANIFEST).is_file():
            return folder
        found = _last(folder)
        if found is not None:
            return found
    raise CheckpointError(
        f"no checkpoint in {start}; expected a run folder, its checkpoints folder, or a folder holding {MANIFEST}"
    )


def holds_checkpoint(run: Path) -> bool:
    """Tell whether a run folder holds a checkpoint, whole or damaged."""
    folder = run / "checkpoints"
    return (folder / POINTER).exists() or any(checkpoint_names(folder))


def _last(folder: Path) -> Path | None:
    """Return the checkpoint that ``last`` names, or the newest one where a crash came before it was written; None without any."""
    pointer = folder / POINTER
    if not pointer.exists():
        return next((path for path in checkpoint_names(folder) if (path / MANIFEST).is_file()), None)
    try:
        # a named pipe would be waited for
        name = pointer.read_text().strip() if pointer.is_file() else "what is no file"
    except (OSError, ValueError) as error:
        name = f"what cannot be read ({error})"
    if re.fullmatch(r"iteration-\d{6,}", name):
        for whole in (folder / name, aside(folder / name)):
            if (whole / MANIFEST).is_file():
                return whole
    raise CheckpointError(
        f"no checkpoint in {folder}: {pointer.name} names {name[:80]}, which is not there; {other_checkpoint(folder)}"
    )


def aside(target: Path) -> Path:
    """Return where a checkpoint is kept while a new one takes its name."""
    return target.with_name(f".replaced-{target.name}")


def save_checkpoint(
    folder: Path,
    groups: PolicyWorkers,
    manifest: Manifest,
    *,
    critics: ValueWorkers | None = None,
    played: PlayedAhead | None = None,
    callbacks: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``folder/iteration-…`` atomically, point ``last`` at it and return it.

    Args:
        folder: Holds the run's checkpoints.
        groups: Worker groups by name.
        manifest: What the checkpoint says about itself.
        critics: Critics by name.
        played: What was played for iterations to come.
        callbacks: States of the callbacks.

    Raises:
        StorageError: It cannot be written; earlier checkpoints are whole.
    """
    target = folder / f"iteration-{manifest.iteration:06d}"
    partial = folder / f".writing-{target.name}"
    with writing("the checkpoint", target):
        if _is_taken(target) and not _is_own(target, manifest.run_id):
            raise StorageError(
                f"the checkpoint cannot be written to {target}: it was not written by this run; move it elsewhere, then resume the run"
            )
        try:
            _delete(partial)
            partial.mkdir(parents=True)
            _write_parts(partial, groups, critics or {}, played, callbacks)
            _check_finite(partial, groups, critics or {})
            whole = replace(manifest, files=seal_files(partial))
            write_atomically(partial / MANIFEST, whole.to_json())
            _put_in_place(partial, target)
        except BaseException:
            # what is there of it only takes the room that is missing
            shutil.rmtree(partial, ignore_errors=True)
            raise
        write_atomically(folder / POINTER, target.name)
        _drop_replaced(aside(target), target)
    return target


def _write_parts(
    partial: Path,
    groups: PolicyWorkers,
    critics: ValueWorkers,
    played: PlayedAhead | None,
    callbacks: Mapping[str, Any] | None,
) -> None:
    """Write everything but the manifest."""
    import torch

    from drmas_pl.rollout.played_ahead import save_played_ahead

    for name, group in groups.items():
        group.save(partial / "groups" / name)
        for agent in group.agents.values():
            agent.save(partial / "agents" / agent.name, model=f"../../groups/{name}")
    for name, critic in critics.items():
        critic.save(partial / "critics" / name)
    if played is not None:
        save_played_ahead(partial / PLAYED_AHEAD, played)
    if callbacks:
        torch.save(dict(callbacks), partial / CALLBACKS)


def _check_finite(partial: Path, groups: PolicyWorkers, critics: ValueWorkers) -> None:
    """Refuse weights that training has spoilt, which would take the place of good ones.

    Raises:
        NonFiniteWeights: There are NaN or infinite ones.
    """
    from drmas_pl.models.weight_files import find_non_finite

    trained = [f"groups/{name}" for name, group in groups.items() if group.settings.trainable]
    for part in (*trained, *(f"critics/{name}" for name in critics)):
        found = find_non_finite(partial / part)
        if found is not None:
            raise NonFiniteWeights(
                f"weights are not finite any more ({part}: {found}) and were not saved; go on from an earlier checkpoint with a lower "
                "optimizer.lr, or start again"
            )


def _put_in_place(partial: Path, target: Path) -> None:
    """Give a written checkpoint its name; one that has it already is moved aside, and back if that fails."""
    moved = target.exists()
    if moved:
        _delete(aside(target))
        os.replace(target, aside(target))
    try:
        os.replace(partial, target)
    except BaseException:
        if moved:
            os.replace(aside(target), target)
        raise
    flush_folder(target.parent)


def prune_checkpoints(folder: Path, keep: Collection[str], *, run_id: str | None = None) -> None:
    """Delete checkpoints that a run has written and no longer needs, and what crashes left of others.

    Links, files, folders with other names or of other runs, and checkpoints with files that are not theirs are left alone.

    Args:
        folder: Holds the run's checkpoints.
        keep: Names of those that stay.
        run_id: Mark of the run.
    """
    for path in list(checkpoint_names(folder)):
        if path.name in keep or not _is_own(path, run_id):
            continue
        foreign = _foreign_files(path)
        if foreign:
            log.warning("%s is kept, since it holds %s, which the run did not write", path, foreign[0])
        else:
            _delete(path)
    for path in folder.glob(".*-iteration-*") if folder.is_dir() else ():
        if _LEFTOVER.fullmatch(path.name):
            _delete(path)


def _is_taken(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _is_own(path: Path, run_id: str | None) -> bool:
    """Tell whether a folder is a checkpoint that this run, or an earlier version, wrote under its present name."""
    if path.is_symlink() or not path.is_dir():
        return False
    try:
        manifest = read_manifest(path)
    except CheckpointError:
        return False
    return manifest.run_id in (None, run_id) and path.name == f"iteration-{manifest.iteration:06d}"


def _foreign_files(path: Path) -> list[Path]:
    """Return files in a checkpoint that were not written with it, relative to it."""
    files = read_manifest(path).files
    present = [file.relative_to(path) for file in path.rglob("*") if not file.is_dir()]
    return [file for file in present if files and file.as_posix() not in {*files, MANIFEST}]


def _drop_replaced(replaced: Path, target: Path) -> None:
    """Delete the checkpoint that another one has taken the place of; what somebody else put into it moves there."""
    if not replaced.is_dir():
        return
    for file in _foreign_files(replaced):
        if not _is_taken(target / file):
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(replaced / file, target / file)
    _delete(replaced)


def _delete(path: Path) -> None:
    """Delete a folder so that what is left after a crash is not taken for a checkpoint; links and files are left alone."""
    if path.is_symlink() or not path.is_dir():
        return
    gone = path
    if not path.name.startswith("."):
        gone = path.with_name(f".deleted-{path.name}")
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(path, gone)
    shutil.rmtree(gone)


def load_checkpoint(
    path: Path,
    groups: PolicyWorkers,
    *,
    data: Mapping[str, str],
    critics: ValueWorkers | None = None,
    allow_changed_data: bool = False,
) -> Manifest:
    """Restore every worker group and critic by name.

    Args:
        path: Checkpoint folder.
        groups: Groups of the run; the order of agents and groups does not matter.
        data: What decides the tasks and prompts of the run, see :func:`~drmas_pl.trainer.state.run_marks`.
        critics: Critics of the run; None leaves those of the checkpoint aside.
        allow_changed_data: Accept other data than the checkpoint was trained on.

    Raises:
        CheckpointError: Agents, groups or critics differ, data changed, or a file does not fit.
    """
    manifest = read_checked(path)
    agents = {agent: name for name, group in groups.items() for agent in group.agents}
    if dict(manifest.agents) != agents:
        raise CheckpointError(
            f"checkpoint {path} binds agents to groups as {dict(manifest.agents)}, but this run as {agents}; "
            "use the same agents and sharing"
        )
    changed = sorted(name for name, mark in manifest.data.items() if data.get(name, mark) != mark)
    if changed and not allow_changed_data:
        raise CheckpointError(
            f"{', '.join(changed)} changed since checkpoint {path} was written; restore what it was, or set trainer.allow_changed_data=true"
        )
    saved = sorted(folder.name for folder in path.glob("critics/*"))
    if critics is not None and saved != sorted(critics):
        raise CheckpointError(
            f"checkpoint {path} has critics {saved}, but this run {sorted(critics)}; use the same critic settings"
        )
    for name, group in groups.items():
        group.load(path / "groups" / name)
    for name, critic in (critics or {}).items():
        critic.load(path / "critics" / name)
    return manifest


def load_callbacks(path: Path) -> dict[str, Any]:
    """Return the states of callbacks in a checkpoint.

    Raises:
        CheckpointError: The file is damaged.
    """
    import torch

    if not (path / CALLBACKS).exists():
        return {}
    try:
        return dict(torch.load(path / CALLBACKS, weights_only=True))
    except Exception as error:
        raise CheckpointError(
            f"{path / CALLBACKS} cannot be read ({str(error).splitlines()[0]}); choose another checkpoint of the run"
        ) from error
