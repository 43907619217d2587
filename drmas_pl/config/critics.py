"""Build the critics of a run from its resolved configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.fabric import Fabric
from torch import nn

from drmas_pl.config.construct import settings
from drmas_pl.config.keys import OPTIMIZER_KEYS
from drmas_pl.config.model_settings import ModelSettings, named_model
from drmas_pl.config.roles import load_named, optimizer_settings, over_run
from drmas_pl.workers.build import (
    AgentBinding,
    CriticSharing,
    ValueWorkerPlan,
    build_critics,
    plan_critics,
)
from drmas_pl.workers.value_worker import ValueWorker, ValueWorkerSettings

# a critic starts from nothing where its agents start from a trained model
FASTER = 10


@dataclass(frozen=True, slots=True)
class CriticChoice:
    """Which critics there are.

    Attributes:
        model: Model they start from; None takes their agents' own.
        sharing: Which agents share a critic.
    """

    model: str | None
    sharing: CriticSharing


def critic_settings(config: Mapping[str, Any]) -> ValueWorkerSettings:
    """Check the section ``critic`` and return how critics learn.

    Raises:
        ConfigError: A value is of the wrong type or out of range.
    """
    own = {key: value for key, value in config["critic"].items() if key not in ("model", "sharing")}
    run = config["optimizer"]["lr"]
    rate = FASTER * (config["model"]["lr"] if run is None else run)
    optimizer = over_run(config["optimizer"], own["optimizer"], common=OPTIMIZER_KEYS)
    optimizer["lr"] = rate if own["optimizer"].get("lr") is None else own["optimizer"]["lr"]
    checked = optimizer_settings(optimizer, "critic.optimizer")
    return settings(
        ValueWorkerSettings,
        {**own, "optimizer": checked, "dump_folder": f"{config['output_dir']}/skipped"},
        "critic",
    )


def configured_critics(
    config: Mapping[str, Any],
    bindings: Sequence[AgentBinding],
    models: Mapping[str, ModelSettings],
    *,
    fabric: Fabric,
    iterations: int,
) -> dict[str, ValueWorker]:
    """Build the critics of a run in this process; none with ``critic=none``.

    Args:
        config: Resolved configuration.
        bindings: Agents, already bound to their weights.
        models: Settings of the agents' models by path.
        fabric: Places critics and scales gradients.
        iterations: Length of the run.

    Raises:
        ConfigError: A value does not fit what it is for.
    """
    if not config["critic"]:
        return {}
    load, options = _choices(config, models)
    return build_critics(bindings, fabric=fabric, load=load, iterations=iterations, **options)


def planned_critics(
    config: Mapping[str, Any],
    bindings: Sequence[AgentBinding],
    models: Mapping[str, ModelSettings],
    *,
    iterations: int,
) -> tuple[list[ValueWorkerPlan], Callable[[str], tuple[nn.Module, Any]]]:
    """Plan the critics of a run for other processes, see :func:`configured_critics`; return the plans, and what loads their models."""
    if not config["critic"]:
        return [], functools.partial(load_named, models)
    load, options = _choices(config, models)
    return plan_critics(bindings, iterations=iterations, **options), load


def _choices(
    config: Mapping[str, Any], models: Mapping[str, ModelSettings]
) -> tuple[Callable[[str], tuple[nn.Module, Any]], dict[str, Any]]:
    """Return what loads the critics' models, and the arguments that say which critics there are and how they learn."""
    how = critic_settings(config)
    choice = settings(CriticChoice, {key: config["critic"][key] for key in ("model", "sharing")}, "critic")
    other = None if choice.model is None else named_model(choice.model, config, "critic.model")
    known = {**models, **({} if other is None else {other.path: other})}
    options = {"sharing": choice.sharing, "settings": how, "model": None if other is None else other.path}
    return functools.partial(load_named, known), options
