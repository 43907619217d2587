"""From the roles of a configuration to agents: what a role does not set for itself it takes from the run."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from drmas_pl.agent import Agent
from drmas_pl.algorithms.objective import Objective, make_objective
from drmas_pl.config.arguments import nearest
from drmas_pl.config.construct import build, checked_arguments, import_target, settings
from drmas_pl.config.keys import OPTIMIZER_KEYS
from drmas_pl.config.model_settings import ModelSettings, role_model
from drmas_pl.errors import ConfigError
from drmas_pl.models.loading import load_model
from drmas_pl.optim import OptimizerSettings
from drmas_pl.team import Team
from drmas_pl.types import SamplingParams
from drmas_pl.workers.build import AgentBinding
from drmas_pl.workers.learner import UpdateSettings

SAMPLING = ("temperature", "top_p", "top_k")
TURNS = ("overflow", "invalid_penalty", "on_truncated", "forbid_cjk")


def load_named(models: Mapping[str, ModelSettings], path: str) -> tuple[nn.Module, Any]:
    """Load a model as its settings say."""
    chosen = models[path]
    model, tokenizer = load_model(path, dtype=chosen.dtype, attn_implementation=chosen.attn_implementation)
    if chosen.chat_template is not None:
        tokenizer.chat_template = chat_template(chosen.chat_template)
    return model, tokenizer


def chat_template(value: str) -> str:
    """Return a chat template that is given as itself or as the file that holds it.

    Raises:
        ConfigError: It is neither.
    """
    if "{{" in value or "{%" in value:
        return value
    try:
        return Path(value).read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.chat_template must be a Jinja template with {{{{ }}}} or {{% %}}, or a file that holds one; "
            f"{value!r} cannot be read ({error})"
        ) from error


def with_chat_templates(config: dict[str, Any]) -> dict[str, Any]:
    """Put the text of template files into a configuration, so that a run's own one says what its prompts are built with.

    Raises:
        ConfigError: A file cannot be read.
    """
    roles = config["agents"]["roles"]
    nodes = [
        config["model"],
        *(role.get("model") for role in roles.values()),
        (config["critic"] or {}).get("model"),
    ]
    for node in nodes:
        if isinstance(node, dict) and node.get("chat_template"):
            node["chat_template"] = chat_template(node["chat_template"])
    return config


def check_run_settings(config: Mapping[str, Any]) -> None:
    """Check the values that roles take from the run, so that a message names the setting that was typed.

    Raises:
        ConfigError: A value is of the wrong type or out of range.
    """
    model = settings(ModelSettings, config["model"], "model")
    settings(SamplingParams, {key: config["rollout"][key] for key in SAMPLING}, "rollout")
    build_objective(config["objective"], "objective")
    settings(UpdateSettings, config["update"], "update")
    optimizer = config["optimizer"]
    lr = model.lr if optimizer["lr"] is None else optimizer["lr"]
    optimizer_settings({**optimizer, "lr": lr}, "optimizer")


def role_order(team: Team, roles: Mapping[str, Any]) -> list[str]:
    """Return the team's agents, each of which needs a role, and nobody else."""
    wrong = set(roles) ^ set(team.possible_agents)
    if wrong:
        hint = nearest(sorted(wrong)[0], team.possible_agents)
        raise ConfigError(
            f"agents.roles must name exactly {list(team.possible_agents)}, got {list(roles)}{hint}"
        )
    return list(team.possible_agents)


def loaded_models(names: Sequence[str], config: Mapping[str, Any]) -> dict[str, ModelSettings]:
    """Return the models of roles by path.

    Raises:
        ConfigError: Two roles want one model loaded in two ways.
    """
    models: dict[str, ModelSettings] = {}
    for name in names:
        model = role_model(name, config)
        known = models.setdefault(model.path, model)
        for key in ("dtype", "attn_implementation", "chat_template"):
            if getattr(known, key) != getattr(model, key):
                raise ConfigError(
                    f"agents.roles.{name}.model.{key} is {getattr(model, key)!r}, but another role loads {model.path} "
                    f"with {getattr(known, key)!r}; one model is loaded once, so that these must be equal"
                )
    return models


def build_binding(name: str, config: Mapping[str, Any]) -> AgentBinding:
    """Build an agent and what it asks of its worker group; null and missing settings take the run's values."""
    where = f"agents.roles.{name}"
    role = dict(config["agents"]["roles"][name])
    model = role_model(name, config)
    run_sampling = {key: config["rollout"][key] for key in SAMPLING}
    sampling = {**run_sampling, "max_new_tokens": model.max_new_tokens, **(role.pop("sampling", None) or {})}
    objective = build_objective(
        over_run(config["objective"], role.pop("objective", None)), f"{where}.objective"
    )
    optimizer = _optimizer(role, model, config["optimizer"], where)
    own_update = {
        **config["update"],
        **(role.pop("update", None) or {}),
        "dump_folder": f"{config['output_dir']}/skipped",
    }
    update = settings(UpdateSettings, own_update, f"{where}.update")
    trainable = role.pop("trainable", True)
    if not isinstance(trainable, bool):
        raise ConfigError(f"{where}.trainable must be true or false, got {trainable!r}")
    role.pop("model", None)
    run_wide = {
        "template": model.template,
        "max_prompt_tokens": model.max_prompt_tokens,
        **{key: config["rollout"][key] for key in TURNS},
    }
    role |= {key: value for key, value in run_wide.items() if role.get(key) is None}
    role["chat_options"] = {**model.chat_options, **(role.get("chat_options") or {})}
    own_sampling = settings(SamplingParams, sampling, f"{where}.sampling")
    agent: Agent = build(role, where, name, sampling=own_sampling, objective=objective, optimizer=optimizer)
    return AgentBinding(agent, model.path, trainable=trainable, optimizer=optimizer, update=update)


def _optimizer(
    role: dict[str, Any], model: ModelSettings, run: Mapping[str, Any], where: str
) -> OptimizerSettings:
    """Take the role's optimizer settings out of ``role``; its ``lr`` counts most, then the run's, then the model's."""
    own = over_run(run, role.pop("optimizer", None), common=OPTIMIZER_KEYS)
    lr = role.pop("lr", None)
    own["lr"] = next(value for value in (lr, own["lr"], model.lr) if value is not None)
    return optimizer_settings(own, f"{where}.optimizer")


def over_run(
    run: Mapping[str, Any], own: Mapping[str, Any] | None, *, common: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a role's settings over the run's; with another ``_target_`` of its own it takes only what is ``common`` to all."""
    own = own or {}
    replaced = own.get("_target_") not in (None, run.get("_target_"))
    return {**{key: value for key, value in run.items() if not replaced or key in common}, **own}


def build_objective(values: Mapping[str, Any], where: str) -> Objective:
    """Build the loss that a section describes, the default one from an empty section.

    Raises:
        ConfigError: A value does not fit, or what is built is no objective.
    """
    try:
        return make_objective(build(values, where) if values else None)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


def optimizer_settings(values: Mapping[str, Any], where: str) -> OptimizerSettings:
    """Return the optimizer and schedule that a section describes.

    Raises:
        ConfigError: A value does not fit.
    """
    own = {name: values[name] for name in OPTIMIZER_KEYS if name in values}
    rest = {name: value for name, value in values.items() if name not in (*OPTIMIZER_KEYS, "_target_")}
    kind = import_target(values["_target_"], where)
    if isinstance(own["schedule"], Mapping):
        schedule = dict(own["schedule"])
        place = f"{where}.schedule"
        make = import_target(schedule.pop("_target_", ""), place)
        own["schedule"] = functools.partial(make, **checked_arguments(make, schedule, place))
    arguments = checked_arguments(kind, rest, where)
    try:
        return settings(OptimizerSettings, {**own, "kind": kind, "arguments": arguments}, where)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error
