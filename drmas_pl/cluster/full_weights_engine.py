"""Generating beside sharded weights: every rank keeps the whole model once more, for its engine alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch import nn

from drmas_pl.engines.base import Engine
from drmas_pl.types import Completion, GenerationRequest
from drmas_pl.workers.offload import HostStore
from drmas_pl.workers.shards import whole


class FullWeightsEngine(Engine):
    """Lets an engine generate with a whole copy of weights that are trained in shares.

    :meth:`sync` brings the copy up to date and is collective: every rank of the group has to call it.

    Args:
        engine: Generates with ``replica``.
        policy: The model that is trained; may be sharded later.
        replica: Copy of it with the same names, on the device of this rank.
        movable: Whether the copy leaves the device while the engine sleeps.
    """

    def __init__(
        self, engine: Engine, *, policy: nn.Module, replica: nn.Module, movable: bool = False
    ) -> None:
        self.engine = engine
        self.policy = policy
        self.replica = replica
        self._awake = True
        self._store = HostStore(
            lambda: (*replica.parameters(), *replica.buffers()) if movable else (),
            next(replica.parameters()).device,
        )
        self.context_length = engine.context_length

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Begin to continue a prompt; see :meth:`Engine.submit`."""
        return self.engine.submit(request)

    @property
    def idle(self) -> bool:
        """See :attr:`Engine.idle`."""
        return self.engine.idle

    @property
    def needs_steps(self) -> bool:
        """Whether the engine advances in :meth:`step` alone."""
        return self.engine.needs_steps

    def begin_step(self) -> Callable[[], None]:
        """See :meth:`Engine.begin_step`."""
        self.engine.autocast = self.autocast
        return self.engine.begin_step()

    def wake(self) -> None:
        """Wake the engine, with its copy on the device."""
        self._awake = True
        self._store.bring()
        self.engine.wake()

    def sleep(self) -> None:
        """Put the engine to sleep; the copy leaves the device if it may."""
        self.engine.sleep()
        self._awake = False
        self._store.release()

    @torch.no_grad()
    def sync(self, version: int) -> None:
        """Copy the trained weights, tensor by tensor."""
        self._store.bring()
        current = self.policy.state_dict()
        for name, tensor in self.replica.state_dict().items():
            tensor.copy_(whole(current[name]))
        self.engine.sync(version)
        super().sync(version)
        if not self._awake:
            self._store.release()

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
