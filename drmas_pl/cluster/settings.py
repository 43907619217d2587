"""Where the ranks of worker groups run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from drmas_pl.errors import ConfigError
from drmas_pl.utils.validation import check_fields
from drmas_pl.workers.strategies import Parallel
from drmas_pl.workers.weights import Layout


@dataclass(frozen=True, slots=True)
class WorkerRanks:
    """What one worker group asks for itself; None takes the run's value.

    Attributes:
        ranks: Number of ranks.
        strategy: How they share the model.
    """

    ranks: int | None = None
    strategy: Parallel | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.ranks is not None and self.ranks < 1:
            raise ValueError(f"ranks must be at least 1, got {self.ranks}")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How many ranks worker groups have, on what, and how long they may take.

    Attributes:
        address: Ray cluster to join, ``auto`` or ``host:port``; None starts one on this machine.
        ranks: Ranks per group.
        strategy: ``ddp`` keeps the whole model on every rank, ``fsdp2`` a share of it.
        colocate: Whether the groups sit on the same devices, where they work in turns, or each on its own.
        gpus_per_rank: 1 or 0 GPUs per rank; None takes one where the cluster has any.
        cpus_per_rank: CPUs reserved per rank, and threads that it computes with.
        stage_timeout: Seconds after which a stage of a group counts as stuck.
        repeats: How often in a row a stage is repeated whose group was lost; 0 keeps no state between iterations for that.
        checkpoint: How groups with ``strategy=fsdp2`` are saved: ``whole``, put together on the first rank, or in ``shards``, where every
            rank writes its own.
        groups: What single groups ask for, by name.

    Raises:
        ValueError: A number is out of range.
    """

    address: str | None = None
    ranks: int = 1
    strategy: Parallel = "ddp"
    colocate: bool = True
    gpus_per_rank: int | None = None
    cpus_per_rank: float = 1.0
    stage_timeout: float = 1800.0
    repeats: int = 2
    checkpoint: Layout = "whole"
    groups: Mapping[str, WorkerRanks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.ranks < 1:
            raise ValueError(f"ranks must be at least 1, got {self.ranks}")
        if self.gpus_per_rank not in (None, 0, 1):
            raise ValueError(
                f"gpus_per_rank must be 0, 1 or null, got {self.gpus_per_rank}; a rank computes on one device"
            )
        if not self.cpus_per_rank > 0:
            raise ValueError(f"cpus_per_rank must be positive, got {self.cpus_per_rank}")
        if not self.stage_timeout > 0:
            raise ValueError(f"stage_timeout must be positive, got {self.stage_timeout}")
        if self.repeats < 0:
            raise ValueError(f"repeats must be at least 0, got {self.repeats}")

    def of(self, *groups: str) -> tuple[int, Parallel]:
        """Return number of ranks and strategy of a group, or of several that share processes.

        Raises:
            ConfigError: Groups that share processes ask for different ones.

        >>> ClusterSettings(ranks=2, groups={"judge": WorkerRanks(ranks=1)}).of("judge")
        (1, 'ddp')
        """
        wanted: dict[str, tuple[int, Parallel]] = {}
        for group in groups:
            own = self.groups.get(group, WorkerRanks())
            wanted[group] = (own.ranks or self.ranks, own.strategy or self.strategy)
        if len(set(wanted.values())) > 1:
            asked = ", ".join(
                f"{group} for {ranks} with {strategy}" for group, (ranks, strategy) in wanted.items()
            )
            raise ConfigError(
                f"groups on one base model share their ranks, but cluster.groups asks {asked}; set the same for all of them, "
                "or use sharing=per_agent"
            )
        return wanted[groups[0]]

    def check_groups(self, names: Collection[str]) -> None:
        """Make sure that whoever asks for something exists.

        Raises:
            ConfigError: ``groups`` names a group that is not there.
        """
        unknown = sorted(set(self.groups) - set(names))
        if unknown:
            raise ConfigError(f"cluster.groups names {unknown}, but the worker groups are {sorted(names)}")
