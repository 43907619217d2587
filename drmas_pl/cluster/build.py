"""From plans of worker groups and critics to groups and critics on a Ray cluster."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from drmas_pl.cluster.critic_rank import ValueRank, ValueRankSpec
from drmas_pl.cluster.process import Load
from drmas_pl.cluster.rank import Rank, RankSpec
from drmas_pl.cluster.ray_actor_group import RayActorGroup
from drmas_pl.cluster.remote import RemotePolicyWorker
from drmas_pl.cluster.remote_critic import RemoteValueWorker
from drmas_pl.cluster.resource_pool import RayResourcePool
from drmas_pl.cluster.settings import ClusterSettings
from drmas_pl.engines.base import EngineFactory
from drmas_pl.errors import ConfigError
from drmas_pl.models.adapters import LoraSettings
from drmas_pl.workers.build import PolicyWorkerPlan, Sharing
from drmas_pl.workers.build_critics import ValueWorkerPlan


def build_remote_groups(
    plans: Sequence[PolicyWorkerPlan],
    pool: RayResourcePool,
    *,
    load: Load,
    engine: EngineFactory,
    accelerator: str = "auto",
    precision: Any = "32-true",
    seed: int = 0,
    lora: LoraSettings | None = None,
) -> dict[str, RemotePolicyWorker]:
    """Start the ranks of every group and wait until they have their weights.

    Args:
        plans: The groups; their agents must not be bound to weights, since they travel to other processes.
        pool: Places for the ranks; groups that :func:`actor_groups_of` puts together must sit together there.
        load: Returns model and tokenizer for a model name; called on every rank.
        engine: Returns the engine of a group, by its name, that generates with a policy; called on every rank.
        accelerator: As in Lightning.
        precision: As in Lightning.
        seed: Seed of the run.
        lora: Shape of the adapters, for ``sharing="lora"``.

    Raises:
        ConfigError: A group asks for what its strategy cannot do.
        GroupLost: A rank died while it was started.
    """
    settings, groups = pool.settings, {}
    crews = actor_groups_of(plans, "per_agent" if lora is None else "lora")
    adapted = [lora is not None and any(plan.settings.trainable for plan in members) for members in crews]
    for members in itertools.compress(crews, adapted):
        check_adapters(members, settings)
    for members, has_adapters in zip(crews, adapted):
        names = [plan.name for plan in members]
        parts = RankSpec(
            plans=tuple(
                replace(plan, settings=replace(plan.settings, checkpoint=settings.checkpoint))
                for plan in members
            ),
            load=load,
            engine=engine,
            strategy=settings.of(*names)[1],
            accelerator=accelerator,
            precision=precision,
            threads=max(int(settings.cpus_per_rank), 1),
            seed=seed,
            lora=lora if has_adapters else None,
        )
        crew = RayActorGroup(names, parts, pool=pool, kind=Rank)
        for plan in members:
            groups[plan.name] = RemotePolicyWorker(
                plan,
                crew=crew,
                timeout=settings.stage_timeout,
                max_retries=settings.repeats,
                owns_devices=not settings.colocate and len(members) == 1,
            )
    for group in groups.values():
        group.wait()
    return {plan.name: groups[plan.name] for plan in plans}


def build_remote_critics(
    plans: Sequence[ValueWorkerPlan],
    pool: RayResourcePool,
    *,
    load: Load,
    accelerator: str = "auto",
    precision: Any = "32-true",
    seed: int = 0,
) -> dict[str, RemoteValueWorker]:
    """Start the ranks of every critic and wait until they have their weights; see :func:`build_remote_groups` for the arguments.

    Raises:
        GroupLost: A rank died while it was started.
    """
    settings, critics = pool.settings, {}
    for plan in plans:
        parts = ValueRankSpec(
            plan=replace(plan, settings=replace(plan.settings, checkpoint=settings.checkpoint)),
            load=load,
            strategy=settings.of(plan.label)[1],
            accelerator=accelerator,
            precision=precision,
            threads=max(int(settings.cpus_per_rank), 1),
            seed=seed,
        )
        crew = RayActorGroup([plan.label], parts, pool=pool, kind=ValueRank)
        critics[plan.name] = RemoteValueWorker(
            plan,
            crew=crew,
            timeout=settings.stage_timeout,
            max_retries=settings.repeats,
            owns_devices=not settings.colocate,
        )
    for critic in critics.values():
        critic.wait()
    return critics


def actor_groups_of(
    plans: Sequence[PolicyWorkerPlan], sharing: Sharing
) -> list[tuple[PolicyWorkerPlan, ...]]:
    """Return which groups share processes: with ``lora`` those on one base model with adapters, otherwise none."""
    adapted = {plan.model for plan in plans if plan.settings.trainable} if sharing == "lora" else set()
    families = [
        tuple(plan for plan in plans if plan.model == model)
        for model in dict.fromkeys(plan.model for plan in plans)
    ]
    return [
        crew
        for family in families
        for crew in ([family] if family[0].model in adapted else [(plan,) for plan in family])
    ]


def check_adapters(members: Sequence[PolicyWorkerPlan], settings: ClusterSettings) -> None:
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
