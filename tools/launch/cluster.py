"""Build worker groups on a Ray cluster from a run's resolved configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drmas_pl.cluster.build import build_remote_groups
from drmas_pl.cluster.pool import Pool
from drmas_pl.cluster.rank import EngineFactory, Load
from drmas_pl.cluster.remote import RemoteGroup
from drmas_pl.cluster.settings import ClusterSettings, GroupRanks
from drmas_pl.errors import ConfigError
from drmas_pl.seeding import derive_seed
from drmas_pl.tools.launch.construct import settings
from drmas_pl.workers.build import GroupPlan


def cluster_settings(config: Mapping[str, Any]) -> ClusterSettings | None:
    """Check the section ``cluster``; None with ``cluster=local``.

    Raises:
        ConfigError: A value is of the wrong type or out of range, or the run asks for what a cluster cannot do.
    """
    if not config.get("cluster"):
        return None
    if config["critic"]:
        raise ConfigError("critics learn in this process alone; use critic=none, or cluster=local with critics")
    if config["sharing"] == "lora":
        raise ConfigError("sharing=lora keeps one base model in one process; use sharing=per_agent, or cluster=local with adapters")
    groups = {name: settings(GroupRanks, value or {}, f"cluster.groups.{name}") for name, value in config["cluster"]["groups"].items()}
    return settings(ClusterSettings, {**config["cluster"], "groups": groups}, "cluster")


def driver_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a trainer that only drives: devices are the ranks' alone."""
    return {**config, "trainer": {**config["trainer"], "accelerator": "cpu", "devices": 1, "strategy": "auto"}}


def cluster_groups(
    config: Mapping[str, Any], cluster: ClusterSettings, plans: Sequence[GroupPlan], *, load: Load, engine: EngineFactory
) -> tuple[Pool, dict[str, RemoteGroup]]:
    """Reserve places and start every group on them.

    Args:
        config: Resolved configuration.
        cluster: Its section ``cluster``.
        plans: The groups.
        load: Returns model and tokenizer for a model name.
        engine: Returns the engine that generates with a policy.

    Raises:
        ConfigError: Ray is missing, or the cluster has no room.
    """
    trainer = config["trainer"]
    if trainer["devices"] != 1 or trainer["strategy"] != "auto":
        raise ConfigError("with cluster=ray set cluster.ranks and cluster.strategy instead of trainer.devices and trainer.strategy")
    pool = Pool(cluster, [plan.name for plan in plans], wants_gpus=trainer["accelerator"] != "cpu")
    try:
        groups = build_remote_groups(
            plans,
            pool,
            load=load,
            engine=engine,
            accelerator=trainer["accelerator"],
            precision=trainer["precision"],
            seed=derive_seed(config["seed"], "build"),
        )
    except BaseException:
        pool.close()
        raise
    return pool, groups
