"""What a run's configuration changes of the presets that its environment and team come with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from drmas_pl.report.run_files import RunFiles, flatten

CONF: Final = Path(__file__).parents[1] / "conf"
# Where files lie says nothing about what a run does.
PLACES: Final = ("output_dir", "resume", "hydra", "logger")
# Groups that a run chooses; all others have a default.
WORLD: Final = ("env", "agents")
_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")
_GLOBAL: Final = re.compile(r"^#\s*@package\s+_global_", re.MULTILINE)
_OVERRIDE: Final = re.compile(r"override\s+/?(\w+)")
_ROLE: Final = re.compile(r"/?(\w+)@([\w.]+)")


def find_differences(run: RunFiles) -> list[list[Any]]:
    """Return keys whose value is not the preset's: key, preset's value, run's value; each value as text, and empty where it has none."""
    presets = preset_values(run.config)
    own = flatten(run.config)
    keys = [key for key in own if key.split(".")[0] not in PLACES]
    return [
        [key, _text(presets[key]) if key in presets else "", _text(own[key])]
        for key in keys
        if not (key in presets and _equal(presets[key], own[key]))
    ]


def preset_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, by dotted key, of a run of the same environment and team that changes nothing.

    Args:
        config: The run's configuration, for the names of environment and team, and for what presets refer to.
    """
    if not config:
        return {}
    root = _load(CONF / "train.yaml")
    groups = _options(root.pop("defaults"))
    root.pop("hydra", None)
    chosen = {name: config[name]["name"] for name in WORLD if _is_named(config.get(name))}
    for name, option in chosen.items():
        groups |= _overridden(CONF / name / f"{option}.yaml")
    tree: dict[str, Any] = {}
    for name, option in groups.items():
        _merge(tree, _placed(name, option))
    _merge(tree, root)
    for name, option in chosen.items():
        _merge(tree, _placed(name, option))
    return _resolved(tree, config)


def _is_named(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("name"), str)


def _options(entries: list[Any]) -> dict[str, str]:
    """Return the option of each group in a defaults list."""
    return {
        name: str(option)
        for entry in entries
        if isinstance(entry, dict)
        for name, option in entry.items()
        if option is not None and not name.startswith(("override", "optional"))
    }


def _overridden(path: Path) -> dict[str, str]:
    """Return the options that a preset chooses for other groups."""
    chosen = {}
    for entry in _load(path).get("defaults") or ():
        if isinstance(entry, dict):
            for key, option in entry.items():
                if (match := _OVERRIDE.fullmatch(str(key))) and option is not None:
                    chosen[match[1]] = str(option)
    return chosen


def _placed(group: str, option: str) -> dict[str, Any]:
    """Return the tree that an option of a group contributes."""
    path = CONF / group / f"{option}.yaml"
    values = _load(path)
    tree: dict[str, Any] = {}
    for entry in values.pop("defaults", None) or ():
        if isinstance(entry, str) and entry != "_self_":
            _merge(tree, _load(CONF / group / f"{entry.lstrip('/')}.yaml"))
        elif isinstance(entry, dict):
            for key, inner in entry.items():
                if match := _ROLE.fullmatch(str(key)):
                    _merge(tree, _under(match[2].split("."), _load(CONF / match[1] / f"{inner}.yaml")))
    _merge(tree, values)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return tree if _GLOBAL.search(text) else {group: tree}


def _under(keys: list[str], tree: dict[str, Any]) -> dict[str, Any]:
    for key in reversed(keys):
        tree = {key: tree}
    return tree


def _merge(tree: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Write ``new`` over ``tree``, mapping by mapping."""
    for key, value in new.items():
        old = tree.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict) and value:
            _merge(old, value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}


def _resolved(tree: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of the presets; a reference has the value that the run has in its place."""
    resolved: dict[str, Any] = {}
    for key, value in flatten(tree).items():
        whole = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if whole is None:
            resolved[key] = value
            continue
        target: Any = config
        for part in whole[1].split("."):
            target = target.get(part) if isinstance(target, Mapping) else None
        resolved |= flatten(target, key)
    return resolved


def _equal(preset: Any, value: Any) -> bool:
    """Compare as Hydra reads: 3e-4, which plain YAML takes for a text, is a number."""
    if preset == value:
        return True
    try:
        return float(preset) == float(value)
    except (TypeError, ValueError):
        return False


def _text(value: Any) -> str:
    if value is None or isinstance(value, (bool, dict, list)):
        return yaml.safe_dump(value, default_flow_style=True, width=10_000).splitlines()[0]
    return str(value)
