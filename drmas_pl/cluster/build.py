"""From plans of worker groups to groups on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drmas_pl.cluster.pool import Pool
from drmas_pl.cluster.rank import EngineFactory, Load, RankParts
from drmas_pl.cluster.remote import RemoteGroup
from drmas_pl.cluster.settings import ClusterSettings
from drmas_pl.errors import ConfigError
from drmas_pl.workers.build import GroupPlan


def build_remote_groups(
    plans: Sequence[GroupPlan],
    pool: Pool,
    *,
    load: Load,
    engine: EngineFactory,
    accelerator: str = "auto",
    precision: Any = "32-true",
    seed: int = 0,
) -> dict[str, RemoteGroup]:
    """Start the ranks of every group and wait until they have their weights.

    Args:
        plans: The groups; their agents must not be bound to weights, since they travel to other processes.
        pool: Places for the ranks.
        load: Returns model and tokenizer for a model name; called on every rank.
        engine: Returns the engine that generates with a policy; called on every rank.
        accelerator: As in Lightning.
        precision: As in Lightning.
        seed: Decides weights that no file holds.

    Raises:
        ConfigError: A group asks for what its strategy cannot do.
        GroupLost: A rank died while it was started.
    """
    settings, groups = pool.settings, {}
    for plan in plans:
        check_strategy(plan, settings)
    for plan in plans:
        parts = RankParts(
            plan=plan,
            load=load,
            engine=engine,
            strategy=settings.of(plan.name)[1],
            accelerator=accelerator,
            precision=precision,
            threads=max(int(settings.cpus_per_rank), 1),
            seed=seed,
        )
        groups[plan.name] = RemoteGroup(
            parts, pool=pool, timeout=settings.stage_timeout, repeats=settings.repeats, alone=not settings.colocate
        )
    for group in groups.values():
        group.wait()
    return groups


def check_strategy(plan: GroupPlan, settings: ClusterSettings) -> None:
    """Refuse to move shares of a model off the device, which are no plain tensors.

    Raises:
        ConfigError: The group is sharded and offloads.
    """
    if settings.of(plan.name)[1] == "fsdp2" and plan.settings.update.offload != "none":
        raise ConfigError(
            f"worker group {plan.name!r}: update.offload={plan.settings.update.offload} cannot move what strategy=fsdp2 has sharded; "
            "use update.offload=none, or strategy=ddp"
        )
