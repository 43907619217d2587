"""From plans of workers to workers on a Ray cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from drmas_pl.cluster.rank import Load, RankSpec
from drmas_pl.cluster.ray_actor_group import RayActorGroup
from drmas_pl.cluster.remote import RemoteWorker
from drmas_pl.cluster.resource_pool import RayResourcePool
from drmas_pl.cluster.settings import ClusterSettings
from drmas_pl.engines.base import EngineFactory
from drmas_pl.errors import ConfigError
from drmas_pl.models.adapters import LoraSettings
from drmas_pl.workers.build import Sharing, WorkerPlan

Handle = TypeVar("Handle", bound=RemoteWorker[Any, Any])
Plan = TypeVar("Plan", bound=WorkerPlan[Any, Any])


def build_remote_workers(
    handle: Callable[..., Handle],
    plans: Sequence[Plan],
    pool: RayResourcePool,
    *,
    load: Load,
    engine: EngineFactory | None = None,
    accelerator: str = "auto",
    precision: Any = "32-true",
    seed: int = 0,
    lora: LoraSettings | None = None,
) -> dict[str, Handle]:
    """Start the ranks of every worker and wait until they have their weights.

    Args:
        handle: What the driver has of a worker: :class:`.RemotePolicyWorker` or :class:`.RemoteValueWorker`.
        plans: The workers; their agents must not be bound to weights, since they travel to other processes.
        pool: Places for the ranks; workers that :func:`actor_groups_of` puts together must be together there.
        load: Returns model and tokenizer for a model name; called on every rank.
        engine: Returns the engine of a worker group, by its name, that generates with a policy; called on every rank.
        accelerator: As in Lightning.
        precision: As in Lightning.
        seed: Seed of the run.
        lora: Shape of the adapters, for ``sharing="lora"``.

    Raises:
        ConfigError: A worker asks for what its strategy cannot do.
        GroupLost: A rank died while it was started.
    """
    settings = pool.settings
    workers: dict[str, Handle] = {}
    groups = actor_groups_of(plans, "per_agent" if lora is None else "lora")
    adapted = [lora is not None and any(plan.settings.trainable for plan in members) for members in groups]
    for members in itertools.compress(groups, adapted):
        check_adapters(members, settings)
    for members, with_adapters in zip(groups, adapted, strict=True):
        labels = [plan.label for plan in members]
        spec = RankSpec(
            plans=tuple(_saved_as(plan, settings) for plan in members),
            load=load,
            engine=engine,
            strategy=settings.of(*labels)[1],
            accelerator=accelerator,
            precision=precision,
            threads=max(int(settings.cpus_per_rank), 1),
            seed=seed,
            lora=lora if with_adapters else None,
        )
        actor_group = RayActorGroup(labels, spec, pool=pool)
        for plan in members:
            workers[plan.name] = handle(
                plan,
                actor_group=actor_group,
                timeout=settings.stage_timeout,
                max_retries=settings.repeats,
                owns_devices=not settings.colocate and len(members) == 1,
            )
    for worker in workers.values():
        worker.wait()
    return {plan.name: workers[plan.name] for plan in plans}


def actor_groups_of(plans: Sequence[Plan], sharing: Sharing) -> list[tuple[Plan, ...]]:
    """Return which workers share processes: with ``lora`` those on one base model with adapters, otherwise none."""
    adapted = {plan.model for plan in plans if plan.settings.trainable} if sharing == "lora" else set()
    families = [
        tuple(plan for plan in plans if plan.model == model)
        for model in dict.fromkeys(plan.model for plan in plans)
    ]
    return [
        members
        for family in families
        for members in ([family] if family[0].model in adapted else [(plan,) for plan in family])
    ]


def check_adapters(members: Sequence[WorkerPlan[Any, Any]], settings: ClusterSettings) -> None:
    """Refuse to shard a base model with adapters.

    Raises:
        ConfigError: The groups' strategy would.
    """
    names = [plan.name for plan in members]
    if settings.of(*names)[1] == "fsdp2":
        raise ConfigError(
            f"worker groups {names} are adapters on one base model, which strategy=fsdp2 would shard once for each of them; use "
            "cluster.strategy=ddp, which trains the adapters alone, or sharing=per_agent"
        )


def _saved_as(plan: Plan, settings: ClusterSettings) -> Plan:
    """Let the cluster's settings decide how sharded state is saved."""
    return replace(plan, settings=replace(plan.settings, checkpoint=settings.checkpoint))
