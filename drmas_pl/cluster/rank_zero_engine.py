"""One server for all ranks of a worker group: the first rank starts it, asks it and sends it weights.

Where ranks hold shares of the weights, all of them put these together whenever the engine wakes, tensor by tensor and into the first
rank's host memory, and score the probe together; no device ever holds the whole model. From that copy a server that was lost is started
again without the other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from lightning.fabric import Fabric
from torch import nn

from drmas_pl.engines.base import Engine
from drmas_pl.engines.served import ServedEngine, policy_logprobs
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest
from drmas_pl.workers.ranks import gather_lists
from drmas_pl.workers.shards import is_sharded, whole_weights
from drmas_pl.workers.strategies import reshard

# name of a rank's machine, and the GPUs it has there
Place = tuple[str, tuple[str, ...]]


class RankZeroServerEngine(Engine):
    """What a rank has in place of a server of its own. All ranks of the group have to call its methods, but for :meth:`submit`.

    Args:
        engine: The group's engine; the first rank's alone is used.
        policy: The model that is trained; may be sharded later.
        fabric: Of this rank.
    """

    def __init__(self, engine: ServedEngine, *, policy: nn.Module, fabric: Fabric) -> None:
        self.engine = engine if fabric.is_global_zero else None
        self.policy = policy
        self.fabric = fabric
        self.context_length = engine.context_length
        self.own_weights = engine.own_weights
        self.stop_token_ids = engine.stop_token_ids
        self._awake = self._fresh = False
        if self.engine is None:
            engine.close()

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Begin to continue a prompt, on the first rank; see :meth:`Engine.submit`."""
        return self._server_engine().submit(request)

    @property
    def idle(self) -> bool:
        """See :attr:`Engine.idle`; ranks without a server have nothing to do."""
        return self.engine is None or self.engine.idle

    @property
    def needs_steps(self) -> bool:
        """Whether the first rank's engine advances in :meth:`step` alone."""
        return self.engine is not None and self.engine.needs_steps

    def begin_step(self) -> Callable[[], None]:
        """See :meth:`Engine.begin_step`."""
        return self._server_engine().begin_step()

    def suspend(self) -> None:
        """See :meth:`Engine.suspend`."""
        self._server_engine().suspend()

    def wake(self) -> None:
        """Wake the group's engine, with the newest weights at hand."""
        self._awake = True
        self._gather()
        self._fresh = True
        if self.engine is not None:
            self.engine.autocast = self.autocast
            self.engine.wake()
            self.context_length = self.engine.context_length

    def sync(self, version: int) -> None:
        """Have the group's engine take over the trained weights; one that sleeps does so when it wakes."""
        super().sync(version)
        if self._awake and not self._fresh:
            self._gather()
        self._fresh = False
        if self.engine is not None:
            self.engine.sync(version)

    def detach(self) -> None:
        """See :meth:`Engine.detach`."""
        if self.engine is not None:
            self.engine.detach()

    def sleep(self) -> None:
        """Put the group's engine to sleep."""
        self._awake = False
        if self.engine is not None:
            self.engine.sleep()

    def close(self) -> None:
        """End the group's engine."""
        if self.engine is not None:
            self.engine.close()

    def _server_engine(self) -> ServedEngine:
        if self.engine is None:
            raise EngineError(
                f"rank {self.fabric.global_rank} has no server; ask the first rank of its group"
            )
        return self.engine

    def _gather(self) -> None:
        """Put the shares together for the first rank, if there are shares."""
        if not is_sharded(self.policy):
            return
        weights = whole_weights(self.policy, keep=self.engine is not None)
        probe: Any = self.fabric.broadcast(None if self.engine is None else self.engine.probe_ids())
        logprobs = policy_logprobs(self.policy, probe, self.autocast)
        reshard(self.policy)
        if self.engine is not None:
            self.engine.take(weights, probe, logprobs)


def devices_beside_rank_zero(place: Place, fabric: Fabric) -> tuple[str, ...]:
    """Return the GPUs of all ranks on the first one's machine, in the order of ranks; every rank has to call it.

    Args:
        place: Where this rank is.
        fabric: Of this rank.
    """
    places = [place for (place,) in gather_lists([place], fabric)]
    return tuple(gpu for node, gpus in places if node == places[0][0] for gpu in gpus)
