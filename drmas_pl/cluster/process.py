"""What every rank's process is: it meets the others of its crew, and saves and restores what it holds.

The driver calls the same method on every rank, in the same order, so that collectives inside meet. A process holds one worker group or
critic, or the several groups that share a base model; the first argument of a method says which.
"""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from lightning.fabric import Fabric
from torch import nn

from drmas_pl.cluster.fabric_environment import RankEnvironment
from drmas_pl.seeding import derive_seed
from drmas_pl.utils.memory import keep_freed_memory
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.snapshot import read_snapshot, write_snapshot
from drmas_pl.workers.strategies import Parallel, make_strategy
from drmas_pl.workers.value_worker import ValueWorker

Address = tuple[str, int]
Load = Callable[[str], tuple[nn.Module, Any]]
Member = TypeVar("Member", bound=PolicyWorker | ValueWorker)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """How the processes of a crew compute; travels to them.

    Attributes:
        load: Returns model and tokenizer for a model name.
        strategy: How ranks share what they train.
        accelerator: As in Lightning.
        precision: As in Lightning.
        threads: CPU threads of torch.
        seed: Seed of the run; decides weights that no file holds, equally on all ranks.
    """

    load: Load
    strategy: Parallel
    accelerator: str
    precision: Any
    threads: int
    seed: int = 0

    @property
    def parallel(self) -> Parallel:
        """How ranks really share the model."""
        return self.strategy


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What the driver has to know of a rank's part in a group.

    Attributes:
        device: Device it computes on.
        node: Address of its machine.
        gpus: GPUs that Ray has given it.
        tokenizer: Tokenizer of the model.
        parameter_count: Number of parameters of the whole model.
        context_length: Largest number of prompt plus response tokens of its engine, if it has one with a limit.
        served: Whether the first rank's engine generates for all ranks of the group.
        end_ids: Ids that end a response.
    """

    device: str
    node: str
    gpus: tuple[str, ...]
    tokenizer: Any
    parameter_count: int
    context_length: int | None = None
    served: bool = False
    end_ids: frozenset[int] = frozenset()


class RankProcess(Generic[Member]):
    """Runs in its own process, as a Ray actor.

    Attributes:
        concurrent_methods: What may be called while another method runs, in threads of their own.

    Args:
        rank: Rank in the crew.
        ranks: Number of ranks of the crew.
    """

    concurrent_methods: frozenset[str] = frozenset()

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.members: dict[str, Member] = {}
        _speak_up(first=rank == 0)

    def address(self) -> Address:
        """Return this machine's address and a free port on it."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return node_address(), probe.getsockname()[1]

    def save(self, name: str, folder: Path) -> None:
        """Write a member's part of a checkpoint."""
        self.members[name].save(folder)

    def load(self, name: str, folder: Path) -> Any:
        """Restore a checkpoint's part of a member."""
        self.members[name].load(folder)

    def snapshot(self, name: str, folder: Path) -> None:
        """Write the state to go on from when a rank is lost."""
        write_snapshot(self.members[name], folder)

    def restore(self, name: str, folder: Path) -> Any:
        """Take over what :meth:`snapshot` wrote."""
        read_snapshot(self.members[name], folder)

    def _meet(self, parts: ProcessParts, address: Address) -> Fabric:
        """Meet the other ranks at the first one's ``address``."""
        torch.set_num_threads(parts.threads)
        fabric = Fabric(
            accelerator=parts.accelerator,
            devices=1,
            num_nodes=self.ranks,
            precision=parts.precision,
            strategy=make_strategy(parts.parallel, ranks=self.ranks) if self.ranks > 1 else "auto",
            plugins=[RankEnvironment(self.rank, self.ranks, address)],
        )
        fabric.launch()
        if fabric.device.type == "cpu":
            keep_freed_memory()
        torch.manual_seed(derive_seed(parts.seed, "build"))
        return fabric

    def _facts(
        self, fabric: Fabric, tokenizer: Any, *, parameter_count: int, context_length: int | None = None
    ) -> RankInfo:
        return RankInfo(
            device=str(fabric.device),
            node=node_address(),
            gpus=own_place()[1],
            tokenizer=tokenizer,
            parameter_count=parameter_count,
            context_length=context_length,
        )


def _speak_up(*, first: bool) -> None:
    """Let warnings of the library through, from one of several equal ranks, and nothing of its dependencies."""
    logging.getLogger("drmas_pl").setLevel(logging.WARNING if first else logging.CRITICAL)
    for name in ("lightning", "lightning.fabric", "lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(lightning|torch|transformers)\..*")


def node_address() -> str:
    """Return the address at which Ray knows this machine."""
    import ray

    return str(ray.util.get_node_ip_address())


def own_place() -> tuple[str, tuple[str, ...]]:
    """Return Ray's name of this node, and the GPUs on it that Ray has given this process."""
    import ray

    context = ray.get_runtime_context()
    return context.get_node_id(), tuple(context.get_accelerator_ids().get("GPU", ()))
