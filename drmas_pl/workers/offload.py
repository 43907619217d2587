"""What a worker group takes off the accelerator while others need it.

Contents of tensors move to the host and back, the tensors stay the same objects, so that optimizers, wrappers and engines keep their
references. Of a sharded tensor this rank's share moves, with the memory that FSDP2 looks at it through. Host copies are allocated once
and, beside an accelerator, pinned, so that copies overlap. Memory is measured after a release, not assumed to be free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drmas_pl.errors import LifecycleError
from drmas_pl.workers.lifecycle import State
from drmas_pl.workers.shards import own_share
from drmas_pl.workers.strategies import reshard

Offload = Literal["none", "optimizer", "all"]
# share of the bytes that must be free after a release
RELEASED = 0.95


class Meter(Protocol):
    """Measures how many bytes of the accelerator are in use."""

    def __call__(self) -> int: ...


def device_meter(device: torch.device) -> Meter | None:
    """Return the meter of a CUDA device; other devices have none."""
    if device.type != "cuda":
        return None

    def measure() -> int:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(device)

    return measure


class HostStore:
    """Tensors whose contents can wait on the host.

    Args:
        tensors: Returns the tensors; asked anew at every release, since optimizer state comes into being with the first step.
        device: Where they belong.
    """

    def __init__(self, tensors: Callable[[], Iterable[Tensor]], device: torch.device) -> None:
        self._tensors = tensors
        self._device = device
        self._host: dict[Tensor, Tensor] = {}
        self._away: list[Tensor] = []

    def release(self) -> int:
        """Move the contents to the host and free them on the device; return the number of bytes freed."""
        found = [
            tensor
            for tensor in self._tensors()
            if tensor.device.type == self._device.type and _contents(tensor).numel() > 1
        ]
        # what is no longer there, for example the optimizer state before a checkpoint was loaded, is let go
        kept = [*self._away, *found]
        self._host = {
            tensor: self._host[tensor] if tensor in self._host else self._allocate(tensor) for tensor in kept
        }
        for tensor in found:
            self._host[tensor].copy_(_contents(tensor), non_blocking=True)
        self._wait()
        for tensor in found:
            _let_go(tensor)
        self._away = kept
        return sum(self._host[tensor].nbytes for tensor in found)

    def bring(self) -> None:
        """Bring back what was released."""
        for tensor in self._away:
            _fill(tensor, self._host[tensor], self._device)
        self._wait()
        self._away = []

    def _allocate(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(_contents(tensor), device="cpu", pin_memory=self._device.type == "cuda")

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class WorkerOffload:
    """The transition hook of one worker group: weights for rollout, weights and optimizer state for training, nothing while asleep.

    Args:
        owner: Name of the group, for errors.
        what: ``none``, the ``optimizer`` state alone, or ``all``.
        models: Modules whose weights belong to the group: the policy and, where there is one, its reference.
        optimizer: Its optimizer, or None.
        device: Where everything belongs.
        meter: Measures the device; None trusts that what was let go is free.
    """

    def __init__(
        self,
        owner: str,
        *,
        what: Offload,
        models: Iterable[nn.Module],
        optimizer: torch.optim.Optimizer | None,
        device: torch.device,
        meter: Meter | None = None,
    ) -> None:
        if what not in ("none", "optimizer", "all"):
            raise ValueError(f"offload must be none, optimizer or all, got {what!r}")
        self.owner = owner
        self.what = what
        self.meter = meter
        self._models = list(models)
        self._weights = HostStore(
            lambda: (p for model in self._models for p in (*model.parameters(), *model.buffers())), device
        )
        self._state = HostStore(lambda: _state_tensors(optimizer), device)
        self._present: set[str] = {"weights", "optimizer"}

    def __call__(self, before: State, after: State) -> None:
        """Hold what the state after the transition needs."""
        needed = {
            State.ROLLOUT: {"weights"},
            State.AHEAD: {"weights"},
            State.TRAINING: {"weights", "optimizer"},
        }.get(after, set())
        self.hold(needed)

    def hold(self, needed: set[str]) -> None:
        """Bring what is needed and release the rest, as far as it may leave the device."""
        movable = {"none": set(), "optimizer": {"optimizer"}, "all": {"weights", "optimizer"}}[self.what]
        stores = {"weights": self._weights, "optimizer": self._state}
        for name in sorted(self._present & movable - needed):
            if name == "weights":
                for model in self._models:
                    reshard(model)
            self._release(stores[name], name)
            self._present.discard(name)
        for name in sorted(needed - self._present):
            stores[name].bring()
            self._present.add(name)

    @contextmanager
    def present(self, *names: str) -> Iterator[None]:
        """Hold ``weights``, ``optimizer`` or both for the duration of the block, whatever the state."""
        before = set(self._present)
        self.hold(before | set(names))
        try:
            yield
        finally:
            self.hold(before)

    def _release(self, store: HostStore, name: str) -> None:
        in_use = 0 if self.meter is None else self.meter()
        expected = store.release()
        if self.meter is None:
            return
        freed = in_use - self.meter()
        if freed < RELEASED * expected:
            raise LifecycleError(
                f"{self.owner} released {expected / 2**20:.1f} MiB of {name}, but only {freed / 2**20:.1f} MiB became free; "
                "something else holds on to them"
            )


def _contents(tensor: Tensor) -> Tensor:
    """Return what can be moved: the tensor, or the whole memory of this rank's share, as it may be padded and seen through other views."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    share = own_share(tensor.detach())
    return torch.empty(0, dtype=share.dtype, device=share.device).set_(share.untyped_storage())


def _let_go(tensor: Tensor) -> None:
    """Free the contents."""
    if isinstance(tensor, DTensor):
        own_share(tensor.detach()).untyped_storage().resize_(0)
    else:
        tensor.data = tensor.data.new_empty(0)


def _fill(tensor: Tensor, contents: Tensor, device: torch.device) -> None:
    """Bring the contents back."""
    if isinstance(tensor, DTensor):
        own_share(tensor.detach()).untyped_storage().resize_(contents.nbytes)
        _contents(tensor).copy_(contents, non_blocking=True)
    else:
        tensor.data = contents.to(device, non_blocking=True, copy=True)


def _state_tensors(optimizer: torch.optim.Optimizer | None) -> Iterator[Tensor]:
    # Fabric's wrapper keeps the state dict it was made with, which loading a checkpoint replaces
    state_by_parameter = {} if optimizer is None else getattr(optimizer, "optimizer", optimizer).state
    for state in state_by_parameter.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
