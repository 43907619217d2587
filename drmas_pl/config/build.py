"""Build the objects of a run from its resolved configuration."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import torch
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.trainer.states import TrainerStatus

from drmas_pl.cluster.resource_pool import RayResourcePool
from drmas_pl.config.cluster import cluster_critics, cluster_groups, cluster_settings, driver_config
from drmas_pl.config.construct import build, build_callable, construct, settings
from drmas_pl.config.critics import configured_critics, critic_settings, planned_critics
from drmas_pl.config.engines import build_engine, check_engine_address, engine_sections
from drmas_pl.config.mixture import expand_parts
from drmas_pl.config.plan import check_fit
from drmas_pl.config.roles import (
    SAMPLING,
    build_binding,
    check_run_settings,
    load_named,
    loaded_models,
    role_order,
)
from drmas_pl.data.module import Split, TaskDataModule
from drmas_pl.errors import ConfigError
from drmas_pl.integrations.gymnasium_env import as_text_env
from drmas_pl.models.adapters import LoraSettings
from drmas_pl.models.loading import check_model
from drmas_pl.seeding import derive_seed
from drmas_pl.team import Team
from drmas_pl.trainer.checks import TrainedAgent
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import SamplingParams, Task
from drmas_pl.utils.memory import keep_freed_memory
from drmas_pl.utils.validation import shown
from drmas_pl.workers.build import Sharing, assign_groups, build_groups, plan_groups
from drmas_pl.workers.protocols import PolicyWorkers, ValueWorkers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a program needs to train or evaluate."""

    trainer: MultiAgentTrainer
    team: Team
    groups: PolicyWorkers
    data: TaskDataModule
    critics: ValueWorkers
    pool: RayResourcePool | None = None

    def close(self) -> None:
        """Release engines, the processes of groups on a cluster, and the run of W&B."""
        for group in self.groups.values():
            group.close()
        for critic in self.critics.values():
            critic.close()
        if self.pool is not None:
            self.pool.close()
        end_wandb(self.trainer)


def end_wandb(trainer: MultiAgentTrainer) -> None:
    """End the run of W&B, which Lightning leaves open and the next run of a sweep would go on with."""
    if any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        import wandb

        wandb.finish(exit_code=0 if trainer.state.status == TrainerStatus.FINISHED else 1)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings that belong to no section."""

    seed: int
    output_dir: str
    sharing: Sharing
    resume: str | None
    threads: int | None


def build_run(
    config: Mapping[str, Any],
    *,
    callbacks: Sequence[Any] = (),
    splits: Sequence[Split] = ("train", "validation"),
) -> Run:
    """Build trainer, team, worker groups and data.

    Args:
        config: Resolved configuration as plain data.
        callbacks: Lightning callbacks besides the configured ones.
        splits: Splits that must hold tasks.

    Raises:
        ConfigError: A value does not fit what it is for.
        DataError: A task file is unusable.
    """
    config = expand_parts(config)
    run = settings(RunSettings, {item.name: config[item.name] for item in fields(RunSettings)})
    check_run_settings(config)
    cluster = cluster_settings(config)
    warmup = critic_settings(config).warmup if config["critic"] else 0
    use_threads(run.threads if run.threads is not None else config["model"].get("threads"))
    torch.manual_seed(derive_seed(run.seed, "build"))
    env = build_env(config["env"])
    team = build_team(config["agents"], env)
    data = build_data(config, env, splits)
    config = {
        **config,
        "trainer": {**config["trainer"], "max_iterations": run_length(config["trainer"], data)},
    }
    trainer = build_trainer(config if cluster is None else driver_config(config), callbacks)
    if trainer.fabric.device.type == "cpu":
        keep_freed_memory()
    names = role_order(team, config["agents"]["roles"])
    models = loaded_models(names, config)
    if cluster is None:
        if trainer.fabric.device.type == "cuda":
            check_fit(config, memory=torch.cuda.mem_get_info(trainer.fabric.device)[1])
        # the files of all models before the weights of the first
        for path in models:
            check_model(path)
    elif (config.get("hardware") or {}).get("memory_gib"):
        check_fit(config)
    bindings = [build_binding(name, config) for name in names]
    if "train" in splits:
        trainer.check_method(
            [TrainedAgent(binding.agent, binding.update) for binding in bindings if binding.trainable]
        )
        trainer.check_team(team, data, [binding.agent for binding in bindings])
    engines = engine_sections(config["engine"], assign_groups(bindings, run.sharing))
    check_engine_address(engines, run.sharing)
    load = functools.partial(load_named, models)
    engine = functools.partial(build_engine, engines)
    iterations = trainer.max_iterations - warmup
    if cluster is not None:
        plans = plan_groups(
            bindings, sharing=run.sharing, iterations=iterations, warmup=warmup, schedule=trainer.schedule
        )
        critic_plans, load_critic = planned_critics(
            config, bindings, models, iterations=trainer.max_iterations
        )
        pool, remote = cluster_groups(config, cluster, plans, load=load, engine=engine, critics=critic_plans)
        return Run(
            trainer,
            team,
            remote,
            data,
            cluster_critics(config, pool, critic_plans, bindings, load=load_critic),
            pool,
        )
    groups = build_groups(
        bindings,
        sharing=run.sharing,
        fabric=trainer.fabric,
        load=load,
        engine=engine,
        iterations=iterations,
        warmup=warmup,
        schedule=trainer.schedule,
        lora=settings(LoraSettings, config["lora"], "lora"),
        seed=run.seed,
    )
    critics = configured_critics(
        config, bindings, models, fabric=trainer.fabric, iterations=trainer.max_iterations
    )
    return Run(trainer, team, groups, data, critics)


def build_env(node: Mapping[str, Any]) -> gymnasium.Env[str, str]:
    """Build the environment, in a text form if it has none of its own.

    Raises:
        ConfigError: The target is no Gymnasium environment, or one that cannot be played in text.
    """
    env = build(node, "env", skip=("name",))
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"env._target_={node['_target_']} must give a Gymnasium environment, got {shown(env)}; name a class derived from "
            "drmas_pl.TextEnv or gymnasium.Env"
        )
    return as_text_env(env)


def build_team(node: Mapping[str, Any], env: gymnasium.Env[str, str]) -> Team:
    """Build the team around its environment; around each part of a mixture as well, to see whether it fits.

    Raises:
        ConfigError: The target is no team, or one that a part does not fit.
    """
    for name, part in getattr(env.unwrapped, "parts", {}).items():
        try:
            build_team(node, part)
        except ConfigError as error:
            raise ConfigError(f"env.parts.{name}: {error}") from error
    team = build(node, "agents", env, skip=("name", "roles", "default_role"))
    if not isinstance(team, Team):
        raise ConfigError(
            f"agents._target_={node['_target_']} must give a team, got {shown(team)}; name a class derived from drmas_pl.Team"
        )
    return team


def use_threads(count: int | None) -> None:
    """Let torch compute with ``count`` CPU threads, or with as many as it likes.

    Raises:
        ConfigError: ``count`` is below 1.
    """
    if count is None:
        return
    if count < 1:
        raise ConfigError(f"threads must be at least 1 or null, got {count}")
    torch.set_num_threads(count)


def build_data(
    config: Mapping[str, Any], env: gymnasium.Env[str, str], splits: Sequence[Split]
) -> TaskDataModule:
    """Build the data module; an environment with tasks of its own plays those where no file is named."""
    options = dict(config["data"])
    for split in ("train", "validation", "test"):
        if isinstance(options[split], Mapping):
            options[split] = build(options[split], f"data.{split}")
    own: tuple[Task, ...] = getattr(env.unwrapped, "tasks", ())
    absent = [split for split in splits if options[split] is None]
    if own and absent:
        log.warning(
            "no data.%s: playing the environment's own %d tasks", " and no data.".join(absent), len(own)
        )
        options |= {split: own for split in absent} | {"allow_overlap": True}
        options["tasks_per_iteration"] = min(options["tasks_per_iteration"], len(own))
    more = {"seed": config["seed"], "allow_changed_data": config["trainer"]["allow_changed_data"]}
    data: TaskDataModule = construct(TaskDataModule, {**options, **more}, "data")
    data.setup()
    for split in splits:
        if not data.tasks(split):
            raise ConfigError(
                f"data.{split} names no tasks; set it to a JSONL or Parquet file, or to a _target_ that returns tasks"
            )
    wanted = options["tasks_per_iteration"]
    count = len(data.tasks("train"))
    if "train" in splits and count < wanted:
        raise ConfigError(f"data.tasks_per_iteration is {wanted}, but there are only {count} training tasks")
    return data


def run_length(node: Mapping[str, Any], data: TaskDataModule) -> int:
    """Return the iterations of a run: ``max_iterations``, or those of ``max_epochs`` passes over the training tasks if they are fewer.

    Raises:
        ConfigError: Neither is given, the number of passes is not positive, or there are no tasks to pass over.
    """
    epochs = node.get("max_epochs")
    iterations = node["max_iterations"]
    if epochs is None:
        if iterations is None:
            raise ConfigError("trainer.max_iterations and trainer.max_epochs are both null; give one of them")
        return int(iterations)
    if isinstance(epochs, bool) or not isinstance(epochs, (int, float)) or not 0 < epochs < math.inf:
        raise ConfigError(
            f"trainer.max_epochs must be a positive number of passes over the training tasks, or null, got {epochs!r}"
        )
    count = len(data.tasks("train"))
    if not count:
        raise ConfigError("trainer.max_epochs needs training tasks to pass over, and there are none")
    wanted = max(1, math.ceil(epochs * count / data.tasks_per_iteration))
    if iterations is None or wanted <= iterations:
        return wanted
    log.warning(
        "trainer.max_iterations=%d ends the run before trainer.max_epochs=%g, which takes %d iterations; null sets no limit",
        iterations,
        epochs,
        wanted,
    )
    return int(iterations)


def build_trainer(config: Mapping[str, Any], callbacks: Sequence[Any]) -> MultiAgentTrainer:
    """Build the trainer with loggers and configured callbacks."""
    options = {name: value for name, value in config["trainer"].items() if name != "max_epochs"}
    sampling = {key: config["evaluation"][key] for key in SAMPLING}
    settings(SamplingParams, sampling, "evaluation")
    evaluation = {key: value for key, value in config["evaluation"].items() if key not in SAMPLING}
    rollout = {item.name: config["rollout"][item.name] for item in fields(RolloutSettings)}
    configured = [
        build(node, f"trainer.callbacks.{index}") for index, node in enumerate(options.pop("callbacks"))
    ]
    objects = {
        "output_dir": config["output_dir"],
        "estimator": build_callable(config["advantage"], "advantage"),
        "credit": build_callable(config["credit"], "credit"),
        "schedule": build_callable(config["schedule"], "schedule"),
        "rollout": settings(RolloutSettings, rollout, "rollout"),
        "evaluation": settings(EvaluationSettings, {**evaluation, "sampling": sampling}, "evaluation"),
        "seed": config["seed"],
        "callbacks": (
            *callbacks,
            *configured,
        ),
        "logger": tuple(build(node, f"logger.{name}") for name, node in config["logger"].items()),
        "hparams": config,
    }
    trainer: MultiAgentTrainer = construct(MultiAgentTrainer, {**options, **objects}, "trainer")
    return trainer
