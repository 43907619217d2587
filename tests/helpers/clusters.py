"""Worker groups of the toy team on a real Ray cluster in this machine's memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from drmas_pl.algorithms.token_batch import TokenBatch
from drmas_pl.cluster.build import actor_groups_of, build_remote_workers
from drmas_pl.cluster.remote import RemotePolicyWorker, RemoteValueWorker
from drmas_pl.cluster.resource_pool import RayResourcePool
from drmas_pl.cluster.settings import ClusterSettings
from drmas_pl.engines.base import Engine
from drmas_pl.engines.transformers import TransformersEngine
from drmas_pl.errors import EngineError, LifecycleError
from drmas_pl.models.adapters import LoraSettings
from drmas_pl.types import Completion, GenerationRequest, Task
from drmas_pl.workers.build import plan_critics, plan_groups
from tests.helpers.toy import EvenEnv, Speaker, load, make_bindings, make_engine


def quiet_ray() -> None:
    """Keep Ray from ending processes and from telling anybody."""
    # how much memory others take on this machine is no reason to end a test's processes
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@contextmanager
def ray_cluster(*, cpus: int = 8, gpus: int = 0) -> Iterator[None]:
    """Run a Ray cluster that believes in more CPUs and GPUs than there are."""
    import ray

    quiet_ray()
    ray.init(
        address="local",
        num_cpus=cpus,
        num_gpus=gpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def remote_groups(
    settings: ClusterSettings, *, engine: Any = make_engine, **groups: Any
) -> Iterator[Mapping[str, RemotePolicyWorker]]:
    """Build the worker groups of the toy team on two ranks each, or as the settings say; see :func:`tests.helpers.toy.make_bindings`."""
    with remote_team(settings, engine=engine, **groups) as (made, _):
        yield made


@contextmanager
def remote_team(
    settings: ClusterSettings,
    *,
    engine: Any = make_engine,
    critics: Mapping[str, Any] | None = None,
    **groups: Any,
) -> Iterator[tuple[Mapping[str, RemotePolicyWorker], Mapping[str, RemoteValueWorker]]]:
    """Build the worker groups of the toy team, and its critics if there are settings for :func:`plan_critics`."""
    sharing, iterations = groups.pop("sharing", "per_agent"), groups.pop("iterations", 4)
    bindings = make_bindings(**groups)
    plans = plan_groups(bindings, sharing=sharing, iterations=iterations)
    judges = plan_critics(bindings, iterations=iterations, **critics) if critics else []
    groups = [[plan.name for plan in members] for members in actor_groups_of(plans, sharing)]
    pool = RayResourcePool(settings, [*groups, *([plan.label] for plan in judges)])
    lora = LoraSettings() if sharing == "lora" else None
    try:
        made = build_remote_workers(
            RemotePolicyWorker, plans, pool, load=load, engine=engine, accelerator="cpu", lora=lora
        )
        yield made, build_remote_workers(RemoteValueWorker, judges, pool, load=load, accelerator="cpu")
    finally:
        pool.close()


class GroupEngine(Engine):
    """The engine of a remote group by itself: what a trainer does with phases of the group, it does when it wakes, sleeps or syncs.

    Args:
        group: The group, asleep.
    """

    def __init__(self, group: RemotePolicyWorker) -> None:
        self.group = group
        self._phase = ExitStack()

    @property
    def idle(self) -> bool:
        return self.group.engine.idle

    @property
    def needs_steps(self) -> bool:
        return self.group.engine.needs_steps

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        try:
            return self.group.engine.submit(request)
        except LifecycleError as error:
            raise EngineError(str(error)) from error

    def begin_step(self) -> Callable[[], None]:
        return self.group.engine.begin_step()

    def wake(self) -> None:
        self._phase.enter_context(self.group.rollout())
        self.context_length = self.group.engine.context_length

    def sleep(self) -> None:
        self._phase.close()

    def sync(self, version: int) -> None:
        super().sync(version)
        self.sleep()
        self.group.weights_version = version
        self.wake()


class Mortal(Speaker):
    """Takes its process down in its first training step, and leaves a mark so that it happens once."""

    def __init__(self, name: str, *, grave: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.grave = Path(grave)

    def training_step(self, batch: TokenBatch, batch_idx: int = 0) -> dict[str, Tensor]:
        if not self.grave.exists():
            self.grave.touch()
            os._exit(1)
        return super().training_step(batch, batch_idx)


class Silent(TransformersEngine):
    """The engine of a group, which never answers."""

    def __init__(self, group: str, policy: Any, tokenizer: Any) -> None:
        super().__init__(policy, tokenizer)

    def begin_step(self) -> Callable[[], None]:
        threading.Event().wait()
        raise AssertionError


class Slayer(EvenEnv):
    """An environment in which something dies when an episode begins; for runs with ``env_check=False``, which would begin some.

    Args:
        strike: Lets it die.
        episode: Number of the episode, over all clones, from 1.
        *more: Further episodes.
    """

    shared = frozenset({"strike", "begun"})

    def __init__(self, strike: Callable[[], None], episode: int, *more: int) -> None:
        super().__init__()
        self.strike, self.episodes = strike, (episode, *more)
        self.begun: list[str] = []

    def begin(self, task: Task) -> str:
        self.begun.append(task.id)
        if len(self.begun) in self.episodes:
            self.strike()
        return super().begin(task)
