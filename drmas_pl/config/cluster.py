"""Build worker groups and critics on a Ray cluster from a run's resolved configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from drmas_pl.cluster.build import actor_groups_of, build_remote_workers
from drmas_pl.cluster.rank import Load
from drmas_pl.cluster.remote import RemotePolicyWorker, RemoteValueWorker
from drmas_pl.cluster.resource_pool import RayResourcePool
from drmas_pl.cluster.settings import ClusterSettings, WorkerRanks
from drmas_pl.config.construct import settings
from drmas_pl.engines.base import EngineFactory
from drmas_pl.errors import ConfigError
from drmas_pl.models.adapters import LoraSettings
from drmas_pl.workers.build import AgentBinding, PolicyWorkerPlan, ValueWorkerPlan, check_tokens


def cluster_settings(config: Mapping[str, Any]) -> ClusterSettings | None:
    """Check the section ``cluster``; None with ``cluster=local``.

    Raises:
        ConfigError: A value is of the wrong type or out of range.
    """
    if not config.get("cluster"):
        return None
    groups = {
        name: settings(WorkerRanks, value or {}, f"cluster.groups.{name}")
        for name, value in config["cluster"]["groups"].items()
    }
    return settings(ClusterSettings, {**config["cluster"], "groups": groups}, "cluster")


def driver_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a trainer that only drives: devices are the ranks' alone."""
    return {
        **config,
        "trainer": {**config["trainer"], "accelerator": "cpu", "devices": 1, "strategy": "auto"},
    }


def cluster_groups(
    config: Mapping[str, Any],
    cluster: ClusterSettings,
    plans: Sequence[PolicyWorkerPlan],
    *,
    load: Load,
    engine: EngineFactory,
    critics: Sequence[ValueWorkerPlan] = (),
) -> tuple[RayResourcePool, dict[str, RemotePolicyWorker]]:
    """Reserve places for every group and critic, and start the groups on theirs.

    Args:
        config: Resolved configuration.
        cluster: Its section ``cluster``.
        plans: The groups.
        load: Returns model and tokenizer for a model name.
        engine: Returns the engine of a group, by its name, that generates with a policy.
        critics: The critics.

    Raises:
        ConfigError: Ray is missing, the cluster has no room, or groups ask for what cannot be.
    """
    trainer = config["trainer"]
    if trainer["devices"] != 1 or trainer["strategy"] != "auto":
        raise ConfigError(
            "with cluster=ray set cluster.ranks and cluster.strategy instead of trainer.devices and trainer.strategy"
        )
    groups = [[plan.label for plan in members] for members in actor_groups_of(plans, config["sharing"])]
    groups += [[plan.label] for plan in critics]
    pool = RayResourcePool(cluster, groups, wants_gpus=trainer["accelerator"] != "cpu")
    lora = settings(LoraSettings, config["lora"], "lora") if config["sharing"] == "lora" else None
    with closed_on_error(pool):
        return pool, build_remote_workers(
            RemotePolicyWorker, plans, pool, load=load, engine=engine, lora=lora, **_common(config)
        )


def cluster_critics(
    config: Mapping[str, Any],
    pool: RayResourcePool,
    plans: Sequence[ValueWorkerPlan],
    bindings: Sequence[AgentBinding],
    *,
    load: Load,
) -> dict[str, RemoteValueWorker]:
    """Start the critics on their places.

    Args:
        config: Resolved configuration.
        pool: Has the places; closed where a critic does not start.
        plans: The critics.
        bindings: Agents, already bound to their weights.
        load: Returns model and tokenizer for a model name.

    Raises:
        ConfigError: A critic reads other tokens than its agents write.
    """
    with closed_on_error(pool):
        critics = build_remote_workers(RemoteValueWorker, plans, pool, load=load, **_common(config))
        for plan in plans:
            check_tokens(plan, bindings, critics[plan.name].infos[0].tokenizer)
        return critics


@contextmanager
def closed_on_error(pool: RayResourcePool) -> Iterator[None]:
    """Give the places back if what stands in the block fails."""
    try:
        yield
    except BaseException:
        pool.close()
        raise


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    trainer = config["trainer"]
    return {"accelerator": trainer["accelerator"], "precision": trainer["precision"], "seed": config["seed"]}
