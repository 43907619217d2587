"""What ``env=mixture`` means: the files of its parts, put in the places that one environment has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from drmas_pl.config.compose import compose_options, resolved
from drmas_pl.errors import ConfigError

SPLITS = ("train", "validation", "test")


def expand_parts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in which each of ``env.parts`` is what its file in ``conf/env`` says; any other one as it is.

    A part's value is its share of the training tasks, in any unit. ``env.settings`` holds what differs from a part's file. Splits for which
    no file is named are the parts' own.

    Raises:
        ConfigError: There are no parts, one has no file or no share, or a setting is for no part.
    """
    env = config["env"]
    if env.get("name") != "mixture":
        return dict(config)
    shares = env["parts"]
    if not shares or not all(isinstance(share, (int, float)) and share > 0 for share in shares.values()):
        raise ConfigError(
            f"env.parts must give environments and their shares, above 0, got {shares!r}; write env.parts.plan_path=1 env.parts.sudoku=2"
        )
    if unknown := sorted(set(env["settings"]) - set(shares)):
        raise ConfigError(f"env.settings names {unknown}, but the parts are {sorted(shares)}")
    parts = {name: _part(name, env["settings"].get(name, {})) for name in shares}
    data = dict(config["data"])
    for split in SPLITS:
        sources = {name: part["data"][split] for name, part in parts.items()}
        if data[split] is None and None not in sources.values():
            data[split] = {"_target_": "drmas_pl.envs.mixture.mixed_tasks", "parts": sources}
    nodes = {
        name: {key: value for key, value in part["env"].items() if key != "name"}
        for name, part in parts.items()
    }
    return {
        **config,
        "env": {"name": env["name"], "_target_": env["_target_"], "parts": nodes},
        "data": {**data, "weights": data["weights"] or shares},
    }


def _part(name: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Compose what a run of this environment alone would have."""
    part = compose_options([f"+env={name}"])
    for key, value in changed.items():
        if key not in part.env:
            raise ConfigError(
                f"env.settings.{name} has no {key!r}; choose from {', '.join(sorted(map(str, part.env)))}"
            )
        OmegaConf.update(part.env, key, value)
    OmegaConf.set_struct(part, False)
    kept = {key: part[key] for key in ("env", "data", "retriever", "reward")}
    return resolved(OmegaConf.create(kept))
