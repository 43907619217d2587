"""Going on with a run: its own configuration, what this command line changes in it, and what cannot be changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drmas_pl.config.arguments import REQUIRED, resumed_from, split_override
from drmas_pl.config.compose import complete, compose_run, resolved
from drmas_pl.config.model_settings import role_model
from drmas_pl.config.stored import CONFIG, changed_config, leaves, read_config
from drmas_pl.config.trust import check_trust, take_trust
from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.trainer.checkpoint import find_checkpoint, holds_checkpoint
from drmas_pl.utils.checkpoint_damage import read_checked
from drmas_pl.utils.manifest import Manifest
from drmas_pl.utils.trust import Trust

# Where a run is, and not what it is.
_PLACES = ("resume", "output_dir")


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """How a run goes on.

    Attributes:
        config: Resolved configuration.
        iteration: Completed iterations of the checkpoint.
        changes: Values before and after of every setting that this command line changes.
        notes: What else should be known about them.
    """

    config: dict[str, Any]
    iteration: int
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def describe(self) -> str:
        """Return the changes, one per line; nothing when there are none."""
        lines = [f"  {path}: {_shown(old)} → {_shown(new)}" for path, (old, new) in self.changes.items()]
        if lines:
            lines.insert(0, f"from iteration {self.iteration} on with other settings than before:")
        return "\n".join([*lines, *self.notes])


def plan_resume(overrides: Sequence[str]) -> ResumePlan:
    """Read the configuration of the run that ``resume=`` names, and apply what else is typed.

    Args:
        overrides: Overrides as typed.

    Raises:
        CheckpointError: There is neither a checkpoint nor a run to start again, or no configuration beside the checkpoint.
        ConfigError: A setting is wrong, or one that a checkpoint cannot go on with.
    """
    trust, overrides = take_trust(overrides)
    folder = Path(str(resumed_from(overrides)))
    if (folder / CONFIG).is_file() and not holds_checkpoint(folder):
        return _plan_from_the_beginning(folder, overrides, trust)
    checkpoint = find_checkpoint(folder)
    manifest = read_checked(checkpoint, content=False)
    run = checkpoint.parent.parent
    if not (run / CONFIG).is_file():
        return _plan_without_config(checkpoint, manifest, overrides)
    stored = read_config(run)
    check_trust(stored, trust, run / CONFIG)
    before, after = changed_config({**stored, "resume": None}, overrides, folder=run)
    _refuse(before, after, manifest, checkpoint)
    changes = differences(before, after)
    return ResumePlan(after, manifest.iteration, changes, _moved_models(before, after))


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values before and after of every setting that differs, whatever the place of the run.

    >>> differences({"a": {"b": 1}, "output_dir": "x"}, {"a": {"b": 2, "c": 3}, "output_dir": "y"})
    {'a.b': (1, 2), 'a.c': (None, 3)}
    """
    old = dict(leaves(before))
    new = dict(leaves(after))
    return {
        path: (old.get(path), new.get(path))
        for path in {**old, **new}
        if path not in _PLACES and old.get(path) != new.get(path)
    }


def _plan_from_the_beginning(run: Path, overrides: Sequence[str], trust: Trust) -> ResumePlan:
    """Start a run again that ended before it was saved."""
    stored = read_config(run)
    check_trust(stored, trust, run / CONFIG)
    before, after = changed_config({**stored, "resume": None}, overrides, folder=run)
    note = f"{run} holds no checkpoint; the run starts again from the beginning"
    return ResumePlan({**after, "resume": None}, 0, differences(before, after), (note,))


def _plan_without_config(checkpoint: Path, manifest: Manifest, overrides: Sequence[str]) -> ResumePlan:
    """Compose the whole command line for a checkpoint without the configuration of its run."""
    typed = {key for _, key, _ in map(split_override, overrides)}
    if not ("experiment" in typed or typed.issuperset(REQUIRED)):
        raise CheckpointError(
            f"there is no {CONFIG} in {checkpoint.parent.parent}, so that resume=… needs the whole command line: "
            "+env=… +agents=… and every setting"
        )
    config = resolved(complete(compose_run(overrides)[0]))
    note = f"there is no {CONFIG} beside {checkpoint}: whether settings have changed cannot be told"
    return ResumePlan(config, manifest.iteration, notes=(note,))


def _refuse(
    before: Mapping[str, Any], after: Mapping[str, Any], manifest: Manifest, checkpoint: Path
) -> None:
    """Refuse what the weights, optimizers and random numbers of a checkpoint cannot go on with."""
    if after["seed"] != manifest.seed:
        raise ConfigError(
            f"seed: the run has seed {manifest.seed}, not {after['seed']}; tasks and samples of every iteration derive from it. "
            "Leave seed out, or start a new run"
        )
    if after["sharing"] != before["sharing"]:
        raise ConfigError(
            f"sharing: the run has sharing={before['sharing']}, not {after['sharing']}; weights and optimizers belong to those "
            "who share them. Leave sharing out, or start a new run"
        )
    for name, role in after["agents"]["roles"].items():
        was = before["agents"]["roles"].get(name)
        if was is not None and role.get("trainable", True) and not was.get("trainable", True):
            raise ConfigError(
                f"agents.roles.{name}.trainable: {name} was frozen, so that there is no optimizer state to go on with. Leave it "
                f"out, or start a new run from its weights: "
                f"agents.roles.{name}.model={checkpoint / 'groups' / manifest.agents[name]}"
            )
        old, new = (_optimizer_class(name, config) for config in (before, after))
        if was is not None and old != new:
            raise ConfigError(
                f"agents.roles.{name}.optimizer: the checkpoint holds the state of {old}, which {new} cannot go on with. Leave the "
                "optimizer out, or start a new run"
            )
    for name, (old, new) in _other_models(before, after).items():
        if Path(old).name != Path(new).name:
            raise ConfigError(
                f"agents.roles.{name}: the checkpoint holds what {old} has learnt, which {new} cannot go on with. Leave the model "
                "out, or start a new run; the same model in another place is taken when it is called the same"
            )


def _optimizer_class(name: str, config: Mapping[str, Any]) -> str:
    """Return the class of a role's optimizer."""
    own = (config["agents"]["roles"].get(name) or {}).get("optimizer") or {}
    return str(own.get("_target_", config["optimizer"]["_target_"]))


def _moved_models(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {new} must be the model that was {old}; the weights are those of the checkpoint"
        for name, (old, new) in _other_models(before, after).items()
    ]


def _other_models(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the models before and after of agents that have another one."""
    names = before["agents"]["roles"].keys() & after["agents"]["roles"].keys()
    pairs = {name: (role_model(name, before).path, role_model(name, after).path) for name in sorted(names)}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
