"""The configuration of a run that exists: read from its folder and changed by what is typed.

``config.yaml`` holds every value and no reference, so that it means the same wherever it is read. References of the shipped files that
still hold are put back before anything is changed: with another ``retriever`` the environment has it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drmas_pl.config.arguments import REQUIRED, escaped, rewrite, split_override
from drmas_pl.config.compose import (
    MODULE,
    Choices,
    bound_by_experiment,
    check_choices,
    compose_plain,
    first_line,
    first_values,
    named_models,
    resolved,
)
from drmas_pl.config.keys import check_keys, replaced_keys
from drmas_pl.config.literal import literal_values
from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.utils.foreign_files import parse_yaml, read_text
from drmas_pl.utils.validation import shown

CONFIG = "config.yaml"
# What the file of every run has, of whatever version.
_EVERY_RUN: Mapping[str, type | tuple[type, ...]] = {
    "seed": int,
    "sharing": str,
    "env._target_": str,
    "agents._target_": str,
    "agents.roles": Mapping,
    "optimizer": Mapping,
    "rollout": Mapping,
    "trainer": Mapping,
    "model": Mapping,
}
# Sections with the same keys whatever is chosen: a run of an older version takes the default where it has none.
_FIXED = ("data", "rollout", "evaluation", "trainer", "update", "optimizer", "objective", "schedule")


def read_config(run: Path) -> dict[str, Any]:
    """Read ``config.yaml`` of a run folder.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    try:
        found = dict(parse_yaml(read_text(run / CONFIG)))
        _check_sections(found)
    except (OSError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{run / CONFIG} cannot be read ({error}); a checkpoint is used with the configuration of its run"
        ) from error
    return found


def _check_sections(config: Mapping[str, Any]) -> None:
    """Raise ValueError where a part is missing that every run has."""
    for path, kind in _EVERY_RUN.items():
        found: Any = config
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, kind):
            raise ValueError(f"{path} is missing, or damaged")


def _check_kinds(stored: Mapping[str, Any], default: Mapping[str, Any], file: Path) -> None:
    """Raise where a section, a role or the settings of a worker group are no mapping.

    Raises:
        CheckpointError: One is not.
    """
    sections = [key for key, value in default.items() if isinstance(value, Mapping)]
    places = [*sections, *(f"agents.roles.{role}" for role in stored["agents"]["roles"])]
    for section in ("engine", "cluster"):
        places += [
            f"{section}.groups",
            *(f"{section}.groups.{name}" for name in _at(stored, f"{section}.groups")),
        ]
    for place in places:
        found = _at(stored, place)
        if not isinstance(found, Mapping):
            raise CheckpointError(
                f"{file} cannot be read ({place} must be a mapping, got {shown(found)}); "
                "a checkpoint is used with the configuration of its run"
            )


def _at(config: Mapping[str, Any], place: str) -> Any:
    """Return what is at a dotted place, an empty mapping where nothing is, and the first thing on the way that is no mapping."""
    found: Any = config
    for name in place.split("."):
        found = found.get(name) or {}
        if not isinstance(found, Mapping):
            break
    return found


def changed_config(
    stored: Mapping[str, Any], overrides: Sequence[str], *, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Apply overrides to the configuration of a run.

    A choice such as ``advantage=grpo`` replaces its section and sets what else its file sets. ``env`` and ``agents`` that the run has
    already are no choice.

    Args:
        stored: The run's configuration as plain data.
        overrides: Overrides as typed.
        folder: Where the run is now.

    Returns:
        The configuration before and after, complete and resolved.

    Raises:
        ConfigError: A choice, a key or a value is wrong.
    """
    searchpath = [word for word in overrides if word.startswith("hydra.searchpath")]
    choices = Choices.read(searchpath)
    typed = literal_values(named_models([word for word in overrides if word not in searchpath], choices))
    parts = [(word, *split_override(word)) for word in first_values(typed, multirun=False)]
    chosen = {key: value or "" for _, prefix, key, value in parts if prefix != "~" and key in choices.groups}
    check_choices(chosen, choices)
    default = compose_plain(searchpath)
    _check_kinds(stored, default, folder / CONFIG)
    config = OmegaConf.create(_referring(_completed(stored, default)))
    config.output_dir = escaped(str(folder))
    before = resolved(config)
    new = {key: value for key, value in chosen.items() if not _is_chosen(key, value, stored)}
    _choose(config, new, searchpath, default, choices)
    values = [part for part in parts if part[2] not in chosen]
    for path in _superseded(config, values):
        _remove(config, path)
    known = {**_plain(config), "model": {**default["model"], **_plain(config.model)}}
    for word, prefix, key, value in values:
        if prefix == "~":
            _remove(config, key)
        else:
            _set(config, word, key, value)
    after = resolved(config)
    check_keys(after, known)
    return before, after


def _completed(stored: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """Add settings that the run's version did not have."""
    settings = {key: value for key, value in default.items() if not isinstance(value, Mapping)}
    sections = {key: _over_default(default[key], stored.get(key) or {}) for key in _FIXED}
    return {**settings, **escaped(stored), **escaped(sections)}


def _over_default(default: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's section over the default one, of which a class of its own takes nothing."""
    return {
        **({} if own.get("_target_", default.get("_target_")) != default.get("_target_") else default),
        **own,
    }


def _is_chosen(group: str, option: str, stored: Mapping[str, Any]) -> bool:
    """Tell whether a run has this environment or team already."""
    return group in REQUIRED and (stored.get(group) or {}).get("name") == option


def _choose(
    config: DictConfig,
    chosen: Mapping[str, str],
    searchpath: Sequence[str],
    default: Mapping[str, Any],
    choices: Choices,
) -> None:
    """Replace the sections of chosen files, and set what these files set elsewhere."""
    if not chosen:
        return
    bound = bound_by_experiment(chosen.get("experiment", ""), searchpath, "train")
    words = rewrite([f"{key}={value}" for key, value in chosen.items()], choices.groups, bound=bound)
    composed = compose_plain([*searchpath, *words])
    for group in chosen:
        if group != "experiment":
            OmegaConf.update(config, group, composed.get(group, {}), merge=False, force_add=True)
    usual = dict(leaves(default))
    for path, value in leaves(composed):
        if path.partition(".")[0] not in chosen and (path not in usual or usual[path] != value):
            OmegaConf.update(config, path, value, merge=False, force_add=True)


def _superseded(config: DictConfig, values: Sequence[tuple[str, str, str, str | None]]) -> list[str]:
    """Return the settings that go with a class when another ``_target_`` is typed for it."""
    plain = _plain(config)
    return [
        path
        for _, prefix, key, value in values
        if key.endswith("._target_") and prefix != "~"
        for path in replaced_keys(plain, key.removesuffix("._target_"), (value or "").strip("'\""))
    ]


def _set(config: DictConfig, word: str, key: str, value: str | None) -> None:
    try:
        parsed = OverridesParser.create().parse_override(word.lstrip("+")).value()
        OmegaConf.update(config, key, parsed, force_add=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {key}={value}: {first_line(error)}") from error


def _remove(config: DictConfig, path: str) -> None:
    parent, _, last = path.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig) or last not in node:
        raise ConfigError(f"~{path}: the run has no such setting")
    node.pop(last)


def _referring(plain: dict[str, Any]) -> dict[str, Any]:
    """Put back references of the shipped files wherever they yield the value that is there."""
    config = OmegaConf.create(plain)
    for path, reference in _references():
        *parents, last = path.split(".")
        node: Any = plain
        for name in parents:
            node = node.get(name) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            continue
        try:
            config["reference"] = reference
            if _value(config["reference"]) == _value(OmegaConf.select(config, path)):
                node[last] = reference
        except OmegaConfBaseException:  # it refers to what this run has not
            continue
    return plain


def _value(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _references() -> Iterator[tuple[str, str]]:
    """Yield path and text of every reference in the files of config groups."""
    for file in sorted(Path(str(resources.files(MODULE))).glob("*/*.yaml")):
        text = file.read_text()
        if "${" in text:
            prefix = "" if text.startswith("# @package _global_") else f"{file.parent.name}."
            for path, value in leaves(yaml.safe_load(text)):
                if isinstance(value, str) and "${" in value:
                    yield f"{prefix}{path}", value


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of everything that is no mapping with something in it.

    >>> dict(leaves({"a": {"b": 1, "c": {}}}))
    {'a.b': 1, 'a.c': {}}
    """
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(config: DictConfig) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))
