"""The engine of every worker group: the section ``engine``, and what single groups ask for in ``engine.groups``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from omegaconf import OmegaConf
from torch import nn

from drmas_pl.config.arguments import nearest
from drmas_pl.config.construct import build
from drmas_pl.config.keys import check_keys
from drmas_pl.engines.base import Engine
from drmas_pl.errors import ConfigError
from drmas_pl.workers.build import Sharing

# a group that names one of the two does not want the other one from the run
ADDRESSES = ("python", "url")


@dataclass(frozen=True, slots=True)
class EngineSection:
    """What one group's engine is built from.

    Attributes:
        where: Place in the configuration, for messages.
        values: Its ``_target_`` and settings.
    """

    where: str
    values: Mapping[str, Any]


def engine_sections(node: Mapping[str, Any], groups: Collection[str]) -> dict[str, EngineSection]:
    """Return the engine section of every worker group.

    What a group sets in ``engine.groups.<name>`` goes on top of the run's section, or on top of a file of ``conf/engine`` that its
    ``kind`` names; one with a ``_target_`` of its own takes nothing from the run.

    Args:
        node: The run's section ``engine``.
        groups: Names of the worker groups.

    Raises:
        ConfigError: A group, a kind or a setting is unknown.
    """
    common = {key: value for key, value in node.items() if key != "groups"}
    own = dict(node.get("groups") or {})
    unknown = sorted(set(own) - set(groups))
    if unknown:
        raise ConfigError(
            f"engine.groups names {unknown}, but the worker groups are {sorted(groups)}{nearest(unknown[0], groups)}"
        )
    return {name: _section(name, common, own.get(name)) for name in groups}


def check_engine_address(sections: Mapping[str, EngineSection], sharing: Sharing) -> None:
    """Raise where several groups would send their weights to one running server; adapters on one base may.

    Args:
        sections: Engine section of every group.
        sharing: Who shares weights.

    Raises:
        ConfigError: See above.
    """
    if sharing == "lora":
        return
    users: dict[str, list[str]] = {}
    for name, section in sections.items():
        if section.values.get("url") is not None:
            users.setdefault(str(section.values["url"]).rstrip("/"), []).append(name)
    for url, names in users.items():
        if len(names) > 1:
            raise ConfigError(
                f"engine.url={url} is one server, but the groups {names} have weights of their own; leave it out so that each starts a "
                "server, give each an address with engine.groups.<name>.url, or use sharing=shared or sharing=lora"
            )


def build_engine(
    sections: Mapping[str, EngineSection], group: str, policy: nn.Module, tokenizer: Any
) -> Engine:
    """Build the engine that generates for ``group`` with ``policy``."""
    engine: Engine = build(sections[group].values, sections[group].where, policy, tokenizer)
    return engine


def _section(name: str, common: Mapping[str, Any], own: Any) -> EngineSection:
    """Put what a group asks for on top of what it inherits."""
    if not own:
        return EngineSection("engine", common)
    where = f"engine.groups.{name}"
    if not isinstance(own, Mapping):
        raise ConfigError(
            f"{where} must hold settings, got {own!r}; an engine of another kind is {where}.kind={own}"
        )
    settings = {key: value for key, value in own.items() if key != "kind"}
    if own.get("kind") is not None:
        base = _file(str(own["kind"]), where)
    else:
        base = {} if "_target_" in settings else dict(common)
    if any(settings.get(key) is not None for key in ADDRESSES):
        base = {**base, **{key: None for key in ADDRESSES if key in base}}
    section = _merged(base, settings)
    check_keys(_nested(where, section), _nested(where, base), by_name=())
    return EngineSection(where, section)


def _file(kind: str, where: str) -> dict[str, Any]:
    """Read a file of ``conf/engine``."""
    folder = resources.files("drmas_pl.conf") / "engine"
    known: Sequence[str] = sorted(
        file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
    )
    if kind not in known:
        raise ConfigError(
            f"{where}.kind has no option {kind!r}{nearest(kind, known) or ';'} choose from: {', '.join(known)}"
        )
    found: Any = OmegaConf.to_container(OmegaConf.create((folder / f"{kind}.yaml").read_text()), resolve=True)
    return {key: value for key, value in found.items() if key != "groups"}


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``more``, section by section."""
    both = {
        key: _merged(base[key], value)
        for key, value in more.items()
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
    }
    return {**base, **more, **both}


def _nested(path: str, value: Any) -> dict[str, Any]:
    """Place a value at a dotted path.

    >>> _nested("a.b", 1)
    {'a': {'b': 1}}
    """
    for key in reversed(path.split(".")):
        value = {key: value}
    found: dict[str, Any] = value
    return found
