"""One rank of workers: a process that holds real policy workers, or a critic, on one device.

The driver calls the same method on every rank, in the same order, so that collectives inside meet; generation alone is divided among
ranks. A process holds one worker, or all worker groups that share a base model; the first argument of a method says which.
"""

from __future__ import annotations

import copy
import logging
import socket
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from torch import nn

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.fabric_environment import RankEnvironment
from drmas_pl.cluster.full_weights_engine import FullWeightsEngine
from drmas_pl.cluster.rank_requests import Answer, NumberedRequest, RankRequests
from drmas_pl.cluster.rank_zero_engine import RankZeroServerEngine, devices_beside_rank_zero
from drmas_pl.engines.base import Engine, EngineFactory
from drmas_pl.engines.served import ServedEngine
from drmas_pl.models.adapters import LoraSettings
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Turn
from drmas_pl.utils.memory import keep_freed_memory
from drmas_pl.workers.build import WorkerPlan, adapted_policies
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.policy_worker import PolicyWorker
from drmas_pl.workers.strategies import Parallel, make_strategy
from drmas_pl.workers.value_worker import ValueWorker

Address = tuple[str, int]
Load = Callable[[str], tuple[nn.Module, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """What a rank builds its workers from, and how they compute; travels to another process.

    Attributes:
        plans: Agents, model and settings of each worker; agents are not bound to weights.
        load: Returns model and tokenizer for a model name.
        engine: Returns the engine of a worker group, by its name, that generates with a policy; None for critics.
        strategy: How ranks share what they train.
        accelerator: As in Lightning.
        precision: As in Lightning.
        threads: CPU threads of torch.
        seed: Seed of the run; decides weights that no file holds, equally on all ranks.
        lora: Shape of the adapters, where the groups are adapters on one base model.
    """

    plans: tuple[WorkerPlan[Any, Any], ...]
    load: Load
    engine: EngineFactory | None = None
    strategy: Parallel
    accelerator: str
    precision: Any
    threads: int
    seed: int = 0
    lora: LoraSettings | None = None

    @property
    def parallel(self) -> Parallel:
        """How ranks really share the model: weights that are never trained gain nothing from shards, since engines need them whole."""
        return self.strategy if any(plan.settings.trainable for plan in self.plans) else "ddp"


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What the driver has to know of a rank's part in a worker.

    Attributes:
        device: Device it computes on.
        node: Address of its machine.
        gpus: GPUs that Ray has given it.
        tokenizer: Tokenizer of the model.
        parameter_count: Number of parameters of the whole model.
        context_length: Largest number of prompt plus response tokens of its engine, if it has one with a limit.
        served: Whether the first rank's engine generates for all ranks of the worker.
        own_weights: Whether its engine keeps weights of its own.
        end_ids: Ids that end a response.
    """

    device: str
    node: str
    gpus: tuple[str, ...]
    tokenizer: Any
    parameter_count: int
    context_length: int | None = None
    served: bool = False
    own_weights: bool = False
    end_ids: frozenset[int] = frozenset()

    @property
    def place(self) -> str:
        """Machine and GPUs, such as ``10.0.0.1 GPU 0``."""
        return " ".join([self.node, *(f"GPU {gpu}" for gpu in self.gpus)])


class RankProcess:
    """Runs in its own process, as a Ray actor.

    Attributes:
        concurrent_methods: What may be called while another method runs, in threads of their own.

    Args:
        rank: Rank in the actor group.
        ranks: Number of ranks of it.
    """

    concurrent_methods = frozenset({"submit", "cancel", "suspend", "poll"})

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self.members: dict[str, PolicyWorker | ValueWorker] = {}
        self._phases: dict[str, list[ExitStack]] = defaultdict(list)
        self._requests: dict[str, RankRequests] = {}
        _show_warnings(first=rank == 0)

    def address(self) -> Address:
        """Return this machine's address and a free port on it."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return node_address(), probe.getsockname()[1]

    def join(self, spec: RankSpec, address: Address) -> dict[str, RankInfo]:
        """Meet the other ranks at the first one's ``address`` and build the workers."""
        fabric = self._meet(spec, address)
        adapted = (
            {} if spec.lora is None else adapted_policies(spec.plans, spec.load, spec.lora, seed=spec.seed)
        )
        found = {}
        for plan in spec.plans:
            model, tokenizer = adapted[plan.name] if plan.name in adapted else spec.load(plan.model)
            engine = partial(self._engine, spec, fabric)
            worker = plan.build(model, tokenizer, fabric=fabric, engine=engine)
            self.members[plan.label] = worker
            if isinstance(worker, PolicyWorker):
                self._requests[plan.label] = RankRequests(worker.engine)
            found[plan.label] = _describe(worker, fabric, tokenizer)
        return found

    def enter(self, name: str, phase: Literal["rollout", "ahead", "training"], version: int) -> int | None:
        """Open a phase of a worker, with its weights known as ``version``; return the context length of its engine."""
        worker = self.members[name]
        worker.weights_version = version
        opened = ExitStack()
        # "ahead" and "rollout" are asked of policies alone
        opened.enter_context(worker.training() if phase == "training" else getattr(worker, phase)())
        self._phases[name].append(opened)
        return worker.engine.context_length if isinstance(worker, PolicyWorker) else None

    def leave(self, name: str) -> None:
        """Close the phase of the worker that was opened last."""
        self._phases[name].pop().close()

    def submit(self, name: str, requests: Sequence[NumberedRequest]) -> None:
        """Give requests to a group's engine."""
        self._requests[name].submit(requests)

    def cancel(self, name: str, numbers: Sequence[int]) -> None:
        """Give requests up."""
        self._requests[name].cancel(numbers)

    def suspend(self, name: str) -> None:
        """Have a group's engine give back what is under way."""
        self._requests[name].suspend()

    def poll(self, name: str, seconds: float) -> list[Answer]:
        """Return what has been answered; wait at most ``seconds`` for the first answer."""
        return self._requests[name].collect(seconds)

    def step(
        self, name: str, cancelled: Sequence[int], count: int, requests: Sequence[NumberedRequest]
    ) -> list[Answer]:
        """Give requests up, take over this rank's new ones, make at most ``count`` steps, and return what is answered."""
        found = self._requests[name]
        found.cancel(cancelled)
        found.submit(requests)
        found.step(count)
        return found.collect()

    def update(self, name: str, rows: Any, *, seed: int) -> tuple[UpdateReport, int]:
        """Run the optimizer steps on all rows; return the report and the version of the weights."""
        torch.manual_seed(derive_seed(seed, "rank", self.rank))
        return self.members[name].update(rows, seed=seed), self.members[name].weights_version

    def reward_penalties(self, name: str, agent: str, turns: Sequence[Turn]) -> list[float]:
        """Return what the KL penalty takes from each turn's score."""
        return self._policy(name).reward_penalties(self._policy(name).agents[agent], turns)

    def values(self, name: str, rows: Sequence[TrainingRow]) -> list[tuple[float, ...]]:
        """Return a critic's value of each sampled token of ``rows``, in order."""
        critic = self.members[name]
        assert isinstance(critic, ValueWorker)
        return critic.values(rows)

    def save(self, name: str, folder: Path) -> None:
        """Write a worker's part of a checkpoint."""
        self.members[name].save(folder)

    def load(self, name: str, folder: Path) -> int:
        """Restore a checkpoint's part of a worker; return the version of the weights."""
        self.members[name].load(folder)
        return self.members[name].weights_version

    def snapshot(self, name: str, folder: Path) -> None:
        """Write the state to go on from when a rank is lost."""
        self.members[name].snapshot(folder)

    def restore(self, name: str, folder: Path) -> int:
        """Take over what :meth:`snapshot` wrote; return the version of the weights."""
        self.members[name].restore(folder)
        return self.members[name].weights_version

    def close(self, name: str) -> None:
        """Release a worker for good."""
        self.members[name].close()

    def _policy(self, name: str) -> PolicyWorker:
        worker = self.members[name]
        assert isinstance(worker, PolicyWorker)
        return worker

    def _meet(self, spec: RankSpec, address: Address) -> Fabric:
        """Meet the other ranks at the first one's ``address``."""
        torch.set_num_threads(spec.threads)
        fabric = Fabric(
            accelerator=spec.accelerator,
            devices=1,
            num_nodes=self.ranks,
            precision=spec.precision,
            strategy=make_strategy(spec.parallel, ranks=self.ranks) if self.ranks > 1 else "auto",
            plugins=[RankEnvironment(self.rank, self.ranks, address)],
        )
        fabric.launch()
        if fabric.device.type == "cpu":
            keep_freed_memory()
        torch.manual_seed(derive_seed(spec.seed, "build"))
        return fabric

    def _engine(self, spec: RankSpec, fabric: Fabric, name: str, policy: nn.Module, tokenizer: Any) -> Engine:
        """Build the engine: one for all ranks if it has a server, else on a whole copy of weights that are going to be sharded."""
        assert spec.engine is not None, "policies generate"
        engine = spec.engine(name, policy, tokenizer)
        if isinstance(engine, ServedEngine):
            engine.use_devices(devices_beside_rank_zero(own_place(), fabric))
            return RankZeroServerEngine(engine, policy=policy, fabric=fabric)
        if self.ranks == 1 or spec.parallel == "ddp":
            return engine
        engine.close()
        replica = fabric.to_device(fabric.strategy.precision.convert_module(copy.deepcopy(policy)))
        replica.requires_grad_(False).eval()
        movable = any(plan.name == name and plan.settings.learning.offload == "all" for plan in spec.plans)
        return FullWeightsEngine(
            spec.engine(name, replica, tokenizer), policy=policy, replica=replica, movable=movable
        )


def _describe(worker: PolicyWorker | ValueWorker, fabric: Fabric, tokenizer: Any) -> RankInfo:
    """Say what the driver has to know."""
    node = node_address()
    gpus = own_place()[1]
    if isinstance(worker, ValueWorker):
        return RankInfo(str(fabric.device), node, gpus, tokenizer, worker.parameter_count)
    return RankInfo(
        str(fabric.device),
        node,
        gpus,
        tokenizer,
        worker.parameter_count,
        context_length=worker.engine.context_length,
        served=isinstance(worker.engine, RankZeroServerEngine),
        own_weights=worker.engine.own_weights,
        end_ids=next(iter(worker.agents.values())).end_ids,
    )


def _show_warnings(*, first: bool) -> None:
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
