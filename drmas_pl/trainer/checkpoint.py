"""Checkpoints: one folder per worker group and per agent, and a manifest keyed by name.

::

    checkpoints/iteration-000090/
        manifest.json             iteration, seed, data fingerprints, which agent belongs to which group, trainer state
        groups/<group>/           Transformers folder, optimizer.pt, group.json; shards/ instead of weights and optimizer.pt where ranks
                                  of a sharded group have written their own
        agents/<agent>/agent.json settings of the agent; Agent.load_from_checkpoint reads this folder
        critics/<critic>/         model.safetensors, optimizer.pt, critic.json; where agents are trained with critics
        callbacks.pt              states of callbacks, where there are any
        ahead/                    rollout of the next iteration, with rollout.staleness=1
    checkpoints/last              name of the newest checkpoint

A checkpoint is written beside its final name and renamed, so a folder with that name is always whole. One that is written again is
moved aside and deleted last, so that a crash at any moment leaves a whole one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drmas_pl.errors import CheckpointError
from drmas_pl.utils.atomic import write_atomically
from drmas_pl.utils.storage import writing

if TYPE_CHECKING:
    # the programs read manifests before they load torch
    from drmas_pl.rollout.dynamic_sampling import RolloutBatch
    from drmas_pl.workers.protocols import PolicyWorkers, ValueWorkers

FORMAT = 1
MANIFEST = "manifest.json"
ROLLOUT_AHEAD = "ahead"
CALLBACKS = "callbacks.pt"


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


def save_checkpoint(
    folder: Path,
    groups: PolicyWorkers,
    manifest: Manifest,
    *,
    critics: ValueWorkers | None = None,
    rollout: RolloutBatch | None = None,
    callbacks: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``folder/iteration-…`` atomically, point ``last`` at it and return it.

    Args:
        folder: Holds the run's checkpoints.
        groups: Worker groups by name.
        manifest: What the checkpoint says about itself.
        critics: Critics by name.
        rollout: What was played ahead for the next iteration.
        callbacks: States of the callbacks.

    Raises:
        StorageError: It cannot be written; earlier checkpoints are whole.
    """
    target = folder / f"iteration-{manifest.iteration:06d}"
    partial = folder / f".writing-{target.name}"
    with writing("the checkpoint", target):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _write_parts(partial, groups, critics or {}, rollout, callbacks)
            (partial / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1))
        except BaseException:
            # what is there of it only takes the room that is missing
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _put_in_place(partial, target)
        write_atomically(folder / "last", target.name)
        shutil.rmtree(aside(target), ignore_errors=True)
    return target


def _write_parts(
    partial: Path,
    groups: PolicyWorkers,
    critics: ValueWorkers,
    rollout: RolloutBatch | None,
    callbacks: Mapping[str, Any] | None,
) -> None:
    """Write everything but the manifest."""
    import torch

    from drmas_pl.rollout.dynamic_sampling import save_rollout

    for name, group in groups.items():
        group.save(partial / "groups" / name)
        for agent in group.agents.values():
            agent.save(partial / "agents" / agent.name, model=f"../../groups/{name}")
    for name, critic in critics.items():
        critic.save(partial / "critics" / name)
    if rollout is not None:
        save_rollout(partial / ROLLOUT_AHEAD, rollout)
    if callbacks:
        torch.save(dict(callbacks), partial / CALLBACKS)


def _put_in_place(partial: Path, target: Path) -> None:
    """Give a written checkpoint its name; one that has it already is moved aside."""
    if target.exists():
        shutil.rmtree(aside(target), ignore_errors=True)
        os.replace(target, aside(target))
    os.replace(partial, target)


def prune_checkpoints(folder: Path, keep: set[str]) -> None:
    """Delete every checkpoint whose name is not in ``keep``, and what crashes left of others."""
    for pattern in ("iteration-*", ".writing-iteration-*", ".replaced-iteration-*"):
        for path in folder.glob(pattern):
            if path.name not in keep:
                shutil.rmtree(path)


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
    manifest = read_manifest(path)
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
            f"{path / CALLBACKS} cannot be read ({str(error).splitlines()[0]}); choose another checkpoint of the run, or delete the "
            "file to let callbacks begin anew"
        ) from error
