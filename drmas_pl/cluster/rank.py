"""One rank of a worker group: a process that holds a real :class:`~drmas_pl.workers.group.WorkerGroup` on one device.

The driver calls the same method on every rank of a group, in the same order, so that collectives inside meet; generation alone is
divided among them.
"""

from __future__ import annotations

import copy
import logging
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from torch import nn

from drmas_pl.batch import Row
from drmas_pl.cluster.environment import RankEnvironment
from drmas_pl.cluster.replica import ReplicaEngine
from drmas_pl.cluster.snapshot import keep_state, restore_state
from drmas_pl.engines.base import Engine
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Completion, GenerationRequest, Turn
from drmas_pl.workers.build import GroupPlan
from drmas_pl.workers.group import WorkerGroup
from drmas_pl.workers.strategies import Parallel, make_strategy
from drmas_pl.workers.update import UpdateReport

Address = tuple[str, int]
Load = Callable[[str], tuple[nn.Module, Any]]
EngineFactory = Callable[[nn.Module, Any], Engine]


@dataclass(frozen=True, slots=True)
class RankParts:
    """What a rank builds its group from; travels to another process.

    Attributes:
        plan: Agents, model and settings of the group; the agents are not bound to weights.
        load: Returns model and tokenizer for a model name.
        engine: Returns the engine that generates with a policy.
        strategy: How ranks share the model.
        accelerator: As in Lightning.
        precision: As in Lightning.
        threads: CPU threads of torch.
        seed: Decides weights that no file holds; equal on all ranks.
    """

    plan: GroupPlan
    load: Load
    engine: EngineFactory
    strategy: Parallel
    accelerator: str
    precision: Any
    threads: int
    seed: int = 0

    @property
    def parallel(self) -> Parallel:
        """How ranks really share the model: weights that are never trained gain nothing from shards, since engines need them whole."""
        return self.strategy if self.plan.settings.trainable else "ddp"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What the driver has to know of a rank.

    Attributes:
        device: Device it computes on.
        node: Address of its machine.
        gpus: GPUs that Ray has given it.
        tokenizer: Tokenizer of the model.
        context_length: Largest number of prompt plus response tokens of its engine.
        parameter_count: Number of parameters of the whole model.
    """

    device: str
    node: str
    gpus: tuple[str, ...]
    tokenizer: Any
    context_length: int | None
    parameter_count: int


class Rank:
    """Runs in its own process, as a Ray actor.

    Args:
        rank: Rank in the group.
        ranks: Number of ranks of the group.
    """

    group: WorkerGroup

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._phase = ExitStack()
        _speak_up(first=rank == 0)

    def address(self) -> Address:
        """Return this machine's address and a free port on it."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return node_address(), probe.getsockname()[1]

    def join(self, parts: RankParts, address: Address) -> RankFacts:
        """Meet the other ranks at the first one's ``address`` and build the group."""
        torch.set_num_threads(parts.threads)
        fabric = self._fabric(parts, address)
        plan = parts.plan
        torch.manual_seed(parts.seed)
        policy, tokenizer = parts.load(plan.model)
        self.group = WorkerGroup(
            plan.name,
            policy=policy,
            tokenizer=tokenizer,
            agents=plan.agents,
            engine=self._engine(parts, policy, tokenizer, fabric),
            fabric=fabric,
            settings=plan.settings,
        )
        import ray

        return RankFacts(
            device=str(fabric.device),
            node=node_address(),
            gpus=tuple(ray.get_runtime_context().get_accelerator_ids().get("GPU", ())),
            tokenizer=tokenizer,
            context_length=self.group.engine.context_length,
            parameter_count=self.group.parameter_count,
        )

    def enter(self, phase: Literal["rollout", "training"], version: int) -> None:
        """Open a phase of the group, with its weights known as ``version``."""
        self.group.weights_version = version
        self._phase.enter_context(self.group.rollout() if phase == "rollout" else self.group.training())

    def leave(self) -> None:
        """Close the open phase."""
        self._phase.close()

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Continue this rank's prompts."""
        return self.group.engine.generate(requests)

    def update(self, rows: Mapping[str, Sequence[Row]], *, seed: int) -> tuple[UpdateReport, int]:
        """Run the optimizer steps on all rows; return the report and the version of the weights."""
        torch.manual_seed(derive_seed(seed, "rank", self.rank))
        return self.group.update(rows, seed=seed), self.group.weights_version

    def reward_penalties(self, agent: str, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score."""
        return self.group.reward_penalties(self.group.agents[agent], turns)

    def save(self, folder: Path) -> None:
        """Write the group's part of a checkpoint."""
        self.group.save(folder)

    def load(self, folder: Path) -> int:
        """Restore a checkpoint's part of the group; return the version of the weights."""
        self.group.load(folder)
        return self.group.weights_version

    def keep(self, folder: Path) -> None:
        """Write the state to go on from when a rank is lost."""
        keep_state(self.group, folder)

    def restore(self, folder: Path) -> int:
        """Take over what :meth:`keep` wrote; return the version of the weights."""
        restore_state(self.group, folder)
        return self.group.weights_version

    def close(self) -> None:
        """Release the engine."""
        self.group.close()

    def _fabric(self, parts: RankParts, address: Address) -> Fabric:
        fabric = Fabric(
            accelerator=parts.accelerator,
            devices=1,
            num_nodes=self.ranks,
            precision=parts.precision,
            strategy=make_strategy(parts.parallel, ranks=self.ranks) if self.ranks > 1 else "auto",
            plugins=[RankEnvironment(self.rank, self.ranks, address)],
        )
        fabric.launch()
        return fabric

    def _engine(self, parts: RankParts, policy: nn.Module, tokenizer: Any, fabric: Fabric) -> Engine:
        """Build the engine, on a whole copy of weights that are going to be sharded."""
        if self.ranks == 1 or parts.parallel == "ddp":
            return parts.engine(policy, tokenizer)
        replica = fabric.to_device(fabric.strategy.precision.convert_module(copy.deepcopy(policy)))
        replica.requires_grad_(False).eval()
        return ReplicaEngine(parts.engine(replica, tokenizer), policy=policy, replica=replica)


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
