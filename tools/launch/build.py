"""Build the objects of a run from its resolved configuration."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

import gymnasium
import torch
import yaml
from pydantic import TypeAdapter, ValidationError
from torch import nn

from drmas_pl.agent import Agent
from drmas_pl.data.files import locate
from drmas_pl.data.module import Split, TaskDataModule
from drmas_pl.engines.base import Engine
from drmas_pl.errors import ConfigError, DrMasError
from drmas_pl.models import load_model
from drmas_pl.objective import PolicyObjective
from drmas_pl.optim import OptimizerSettings
from drmas_pl.rollout.estimators import AdvantageEstimator
from drmas_pl.seeding import derive_seed
from drmas_pl.team import Team
from drmas_pl.tools.launch.arguments import nearest
from drmas_pl.tools.launch.keys import import_target
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import SamplingParams, Task
from drmas_pl.workers.build import AgentBinding, build_groups
from drmas_pl.workers.group import WorkerGroup
from drmas_pl.workers.update import UpdateSettings

log = logging.getLogger(__name__)
T = TypeVar("T")
_SAMPLING = ("temperature", "top_p", "top_k")


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a program needs to train or evaluate."""

    trainer: MultiAgentTrainer
    team: Team
    groups: dict[str, WorkerGroup]
    data: TaskDataModule


def build_run(config: Mapping[str, Any], *, callbacks: Sequence[Any] = ()) -> Run:
    """Build trainer, team, worker groups and data.

    Args:
        config: Resolved configuration as plain data.
        callbacks: Lightning callbacks besides the configured ones.

    Raises:
        ConfigError: A value does not fit what it is for.
        DataError: A task file is unusable.
    """
    torch.manual_seed(derive_seed(config["seed"], "build"))
    env = build(config["env"], "env", skip=("name",))
    team: Team = build(config["agents"], "agents", env, skip=("name", "roles"))
    data = build_data(config, env)
    trainer = build_trainer(config, callbacks)
    bindings = [build_binding(name, config) for name in role_order(team, config["agents"]["roles"])]
    models = {str(model["path"]): model for model in (role_model(binding.agent.name, config) for binding in bindings)}
    groups = build_groups(
        bindings,
        sharing=config["sharing"],
        fabric=trainer.fabric,
        load=lambda path: load_model(path, dtype=models[path]["dtype"], attn_implementation=models[path]["attn_implementation"]),
        engine=functools.partial(build_engine, config["engine"]),
        iterations=trainer.max_iterations,
    )
    return Run(trainer, team, groups, data)


def build(node: Mapping[str, Any], where: str, *args: Any, skip: Sequence[str] = (), **more: Any) -> Any:
    """Call a node's ``_target_`` with its other keys; nested targets are built first and ``embedded:`` files located.

    Raises:
        ConfigError: The target cannot be imported or rejects its arguments.
    """
    target = import_target(node["_target_"], where)
    kwargs = {key: _value(value, f"{where}.{key}") for key, value in node.items() if key not in ("_target_", "_partial_", *skip)}
    try:
        return target(*args, **kwargs, **more)
    except DrMasError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {node['_target_']} rejects its settings: {error}") from error


def settings(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a settings dataclass with its types checked.

    Raises:
        ConfigError: A value is of the wrong type or out of range.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in (where, *first["loc"]))
        got = "" if not first["loc"] else f", got {first['input']!r}"
        raise ConfigError(f"{key}: {first['msg'].removeprefix('Value error, ')}{got}") from error


def build_data(config: Mapping[str, Any], env: gymnasium.Env[str, str]) -> TaskDataModule:
    """Build the data module; an environment with tasks of its own plays those when no file is named."""
    options = dict(config["data"])
    for split in ("train", "validation", "test"):
        if isinstance(options[split], Mapping):
            options[split] = build(options[split], f"data.{split}")
    own: tuple[Task, ...] = getattr(env.unwrapped, "tasks", ())
    if own and options["train"] is None:
        log.warning("no data.train: training and validating on the environment's own %d tasks", len(own))
        options |= {"train": own, "validation": options["validation"] or own, "allow_overlap": True}
        options["tasks_per_iteration"] = min(options["tasks_per_iteration"], len(own))
    data = TaskDataModule(**options, seed=config["seed"], allow_changed_data=config["trainer"]["allow_changed_data"])
    data.setup()
    required: tuple[Split, ...] = ("train", "validation")
    for split in required:
        if not data.tasks(split):
            raise ConfigError(f"data.{split} names no tasks; set it to a JSONL or Parquet file, or to a _target_ that returns tasks")
    wanted, count = options["tasks_per_iteration"], len(data.tasks("train"))
    if count < wanted:
        raise ConfigError(f"data.tasks_per_iteration is {wanted}, but there are only {count} training tasks")
    return data


def build_trainer(config: Mapping[str, Any], callbacks: Sequence[Any]) -> MultiAgentTrainer:
    """Build the trainer with loggers and configured callbacks."""
    options = dict(config["trainer"])
    estimator: AdvantageEstimator = build(config["advantage"], "advantage")
    evaluation = {key: value for key, value in config["evaluation"].items() if key not in _SAMPLING}
    sampling = {key: config["evaluation"][key] for key in _SAMPLING}
    rollout = {key: value for key, value in config["rollout"].items() if key not in _SAMPLING}
    configured = [build(node, f"trainer.callbacks.{index}") for index, node in enumerate(options.pop("callbacks"))]
    try:
        return MultiAgentTrainer(
            **options,
            output_dir=config["output_dir"],
            estimator=estimator,
            rollout=settings(RolloutSettings, rollout, "rollout"),
            evaluation=settings(EvaluationSettings, {**evaluation, "sampling": sampling}, "evaluation"),
            seed=config["seed"],
            callbacks=[*callbacks, *configured],
            logger=[build(node, f"logger.{name}") for name, node in config["logger"].items()],
        )
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, DrMasError) else ConfigError(f"trainer: {error}") from error


def role_order(team: Team, roles: Mapping[str, Any]) -> list[str]:
    """Return the team's agents, each of which needs a role, and nobody else."""
    wrong = set(roles) ^ set(team.possible_agents)
    if wrong:
        hint = nearest(sorted(wrong)[0], team.possible_agents)
        raise ConfigError(f"agents.roles must name exactly {list(team.possible_agents)}, got {list(roles)}{hint}")
    return list(team.possible_agents)


def role_model(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model settings of a role: the run's, those of a file in ``conf/model``, or a path with the run's other settings."""
    choice = config["agents"]["roles"][name].get("model")
    if choice is None:
        return dict(config["model"])
    if isinstance(choice, Mapping):
        return {**config["model"], **choice}
    file = resources.files("drmas_pl.conf") / "model" / f"{choice}.yaml"
    return yaml.safe_load(file.read_text()) if file.is_file() else {**config["model"], "path": choice}


def build_binding(name: str, config: Mapping[str, Any]) -> AgentBinding:
    """Build an agent and what it asks of its worker group; null and missing settings take the run's values."""
    where, role, model = f"agents.roles.{name}", dict(config["agents"]["roles"][name]), role_model(name, config)
    run_sampling = {key: config["rollout"][key] for key in _SAMPLING}
    sampling = {**run_sampling, "max_new_tokens": model["max_new_tokens"], **role.pop("sampling", {})}
    objective = settings(PolicyObjective, {**config["objective"], **role.pop("objective", {})}, f"{where}.objective")
    lr = role.pop("lr", None)
    own = {**config["optimizer"], **role.pop("optimizer", {}), **({} if lr is None else {"lr": lr})}
    own["lr"] = model["lr"] if own["lr"] is None else own["lr"]
    optimizer = settings(OptimizerSettings, own, f"{where}.optimizer")
    skipped = f"{config['output_dir']}/skipped"
    update = settings(UpdateSettings, {**config["update"], **role.pop("update", {}), "dump_folder": skipped}, f"{where}.update")
    trainable = role.pop("trainable", True)
    role.pop("model", None)
    for key in ("template", "max_prompt_tokens"):
        role[key] = model[key] if role.get(key) is None else role[key]
    agent: Agent = build(
        role, where, name, sampling=settings(SamplingParams, sampling, f"{where}.sampling"), objective=objective, optimizer=optimizer
    )
    return AgentBinding(agent, str(model["path"]), trainable=trainable, optimizer=optimizer, update=update)


def build_engine(node: Mapping[str, Any], policy: nn.Module, tokenizer: Any) -> Engine:
    """Build the engine that generates with ``policy``."""
    engine: Engine = build(node, "engine", policy, tokenizer)
    return engine


def _value(value: Any, where: str) -> Any:
    """Build nested targets and locate shipped files."""
    if isinstance(value, Mapping):
        return build(value, where) if "_target_" in value else {key: _value(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, str) and value.startswith("embedded:"):
        return locate(value)
    return value
