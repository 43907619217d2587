"""Which settings exist: every key of a composed configuration must be one that somebody reads.

Known are the keys of the shipped files, the fields of the settings classes, and the constructor arguments of whatever a
``_target_`` names. Anything else, also when it was added with ``+``, is rejected with the nearest name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drmas_pl.config.arguments import nearest_name
from drmas_pl.config.construct import import_target
from drmas_pl.config.signatures import Signature, inspect_signature, signature
from drmas_pl.errors import ConfigError

# by name, since most of these classes come with torch
ROLE_SETTINGS = {
    "model": "drmas_pl.config.model_settings.ModelSettings",
    "sampling": "drmas_pl.types.SamplingParams",
    "update": "drmas_pl.workers.learner.UpdateSettings",
}
# sections of a role that build what the run's section of the same name names, unless they name something else
ROLE_PARTS = ("objective", "optimizer")
ROLE_KEYS = ("_target_", "trainable", "lr", *ROLE_SETTINGS, *ROLE_PARTS)
# what every optimizer has, whatever its class
OPTIMIZER_KEYS = ("lr", "schedule", "warmup_ratio")
TARGET_KEYS = ("_target_", "_partial_")
# mappings whose keys are names of agents, worker groups, data sources, columns or environments
BY_NAME = (
    "rollout.align_turns",
    "credit.alpha_by_agent",
    "cluster.groups",
    "engine.groups",
    "data.weights",
    "data.columns",
    "env.parts",
    "env.settings",
    "model.chat_options",
)


def check_keys(
    config: Mapping[str, Any], reference: Mapping[str, Any], *, by_name: Sequence[str] = BY_NAME
) -> None:
    """Reject unknown keys.

    Args:
        config: The composed configuration as plain data.
        reference: The same composed from group choices alone; its keys are known.
        by_name: Mappings whose keys are names, with values that are checked elsewhere.

    Raises:
        ConfigError: A key is unknown; the message names it and the nearest known one.
    """
    known = set(_paths(reference))
    # most configurations have no other keys, and their classes need no look
    others = [path for path in _paths(config) if path not in known]
    if not others:
        return
    known |= set(_known(config))
    open_nodes = (*(f"{name}." for name in by_name if name in known), *_open(config))
    for path in others:
        if path not in known and not path.startswith(open_nodes):
            raise ConfigError(f"unknown setting {path!r}{_suggestion(path, known)}")


def replaced_keys(config: Mapping[str, Any], place: str, target: str) -> list[str]:
    """Return the paths of the settings that are no longer meant when another ``_target_`` takes a place.

    These are the arguments of the class that was there. Of a class derived from it those that it does not take; a team keeps its
    roles, and a role what every role can set.

    Args:
        config: The configuration before, as plain data.
        place: Dotted path of the object, such as ``advantage``.
        target: What it becomes.
    """
    node: Any = config
    for name in place.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    before = node.get("_target_") if isinstance(node, Mapping) else None
    if not isinstance(before, str) or before in ("???", target):
        return []
    old = import_target(before, place)
    new = import_target(target, place)
    kept = {*TARGET_KEYS, *_kept(place)}
    if inspect.isclass(old) and inspect.isclass(new) and issubclass(new, old):
        taken = inspect_signature(new)
        kept |= set(node if taken.takes_any else taken.names)
    return [f"{place}.{name}" for name in node if name not in kept]


def _kept(place: str) -> Sequence[str]:
    """Return the settings of a place that are nobody's arguments, or everybody's."""
    if place.rpartition(".")[2] == "optimizer":
        return OPTIMIZER_KEYS
    if place.startswith("agents.roles."):
        return (*ROLE_KEYS, *signature("drmas_pl.agent.Agent", place).names)
    return {"env": ("name",), "agents": ("name", "roles", "default_role")}.get(place, ())


def _suggestion(path: str, known: set[str]) -> str:
    """Name a key elsewhere with the same last word, or else the nearest sibling, the nearest key anywhere, or all siblings."""
    parent, _, leaf = path.rpartition(".")
    siblings = [name for name in known if name.rpartition(".")[0] == parent]
    leaves = [name.rpartition(".")[2] for name in known]
    found = None if leaf in leaves else nearest_name(leaf, [name.rpartition(".")[2] for name in siblings])
    if found is not None:
        return f"; did you mean {f'{parent}.{found}'.lstrip('.')!r}?"
    found = nearest_name(leaf, leaves)
    homes = sorted(
        (name for name in known if name.rpartition(".")[2] == found),
        key=lambda name: (name.count("."), name != f"optimizer.{found}", name),
    )
    if homes:
        return f"; did you mean {homes[0]!r}?"
    return (
        f"; {parent or 'the top level'} has {', '.join(sorted(name.rpartition('.')[2] for name in siblings))}"
        if siblings
        else ""
    )


def _paths(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every node."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")


def _known(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths that settings classes and constructors know."""
    for prefix, _, taken in _targets(config):
        yield from (f"{prefix}{name}" for name in (*TARGET_KEYS, *taken.names))
    if "engine" in config:
        yield "engine.groups"
    yield from (f"logger.{name}" for name, node in (config.get("logger") or {}).items() if "_target_" in node)
    agents = config.get("agents") or {}
    places = [f"agents.roles.{role}" for role in agents.get("roles") or {}]
    for prefix in [*places, *(["agents.default_role"] if "default_role" in agents else [])]:
        yield prefix
        yield from (f"{prefix}.{name}" for name in ROLE_KEYS)
        for section, kind in ROLE_SETTINGS.items():
            yield from (f"{prefix}.{section}.{name}" for name in signature(kind, prefix).names)
        for section in ROLE_PARTS:
            yield from (f"{prefix}.{section}.{name}" for name in _part_keys(config, section))
    if config.get("critic"):
        yield from (f"critic.optimizer.{name}" for name in _part_keys(config, "optimizer"))


def _part_keys(config: Mapping[str, Any], section: str) -> tuple[str, ...]:
    """Return the settings of what a section of the run builds, which sections of roles and critics can change one by one."""
    target = (config.get(section) or {}).get("_target_")
    common = ("_target_", *(OPTIMIZER_KEYS if section == "optimizer" else ()))
    return common if target is None else (*common, *signature(target, section).names)


def _open(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield prefixes below which anything goes: targets with ``**kwargs``, and mappings that are one argument's value."""
    for role in (config.get("agents") or {}).get("roles") or {}:
        yield from (f"agents.roles.{role}.{name}chat_options." for name in ("", "model."))
    for prefix, node, taken in _targets(config):
        if taken.takes_any:
            yield prefix
        for name, value in node.items():
            free = isinstance(value, Mapping) and "_target_" not in value
            if free and name in taken.names and name not in (*ROLE_SETTINGS, *ROLE_PARTS):
                yield f"{prefix}{name}."


def _targets(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Signature]]:
    """Yield prefix, node and signature of every object."""
    for prefix, node in _nodes(config):
        target = node.get("_target_")
        if isinstance(target, str) and target != "???":
            yield prefix, node, signature(target, prefix.rstrip(".") or "config")
    agents = config.get("agents") or {}
    target = str((agents.get("default_role") or {}).get("_target_") or "")
    for name, role in (agents.get("roles") or {}).items() if target else ():
        if "_target_" not in role:
            yield f"agents.roles.{name}.", role, signature(target, f"agents.roles.{name}")


def _nodes(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield prefix, node
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _nodes(value, f"{prefix}{key}.")
