"""Whole tensors of a model that several ranks hold in shares, and back.

Under FSDP2 weights and optimizer state are DTensors: every rank has a share of each. Functions that put shares together are collective,
so every rank of the group must call them with the same names. Tensors that are whole everywhere pass through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

NamedState = Mapping[str, Mapping[str, Any]]


def is_sharded(module: nn.Module) -> bool:
    """Tell whether the ranks hold shares of the module's weights."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


def own_share(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, with the same memory.

    >>> import torch
    >>> own_share(torch.ones(2))
    tensor([1., 1.])
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(value: Any, *, keep: bool = True) -> Any:
    """Return a tensor with the shares of all ranks, or None to a rank that does not ``keep`` it; other values pass through.

    Args:
        value: A tensor, sharded or not, or anything else.
        keep: Whether this rank wants the result; it takes part either way.
    """
    if not isinstance(value, DTensor):
        return value
    tensor = value.full_tensor()
    return tensor if keep else None


def whole_weights(module: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Return the module's whole state dict in host memory, one tensor after the other; empty on ranks that do not ``keep`` it.

    Names that share a tensor still do.
    """
    shared = {name: id(parameter) for name, parameter in module.named_parameters(remove_duplicate=False)}
    known: dict[Any, Tensor] = {}
    found = {}
    for name, tensor in module.state_dict().items():
        key = shared.get(name, name)
        if key not in known:
            gathered = whole(tensor.detach(), keep=keep)
            known[key] = gathered.cpu() if keep else tensor
        found[name] = known[key]
    return found if keep else {}


def whole_state(named: NamedState, *, keep: bool) -> dict[str, dict[str, Any]]:
    """Return optimizer state by parameter name with whole tensors in host memory; empty on ranks that do not ``keep`` it."""
    found: dict[str, dict[str, Any]] = {}
    for name, values in named.items():
        gathered = {key: whole(value, keep=keep) for key, value in values.items()}
        if keep:
            found[name] = {
                key: value.cpu() if isinstance(value, Tensor) else value for key, value in gathered.items()
            }
    return found


def shard_like(value: Tensor, target: Tensor | None) -> Tensor:
    """Deal a whole tensor out as ``target`` is; one that is not sharded, or has no counterpart, stays whole.

    Args:
        value: The whole tensor, equal on all ranks.
        target: Tensor of the same shape.
    """
    if not isinstance(target, DTensor) or value.shape != target.shape:
        return value
    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements)


def shard_state(named: NamedState, module: nn.Module) -> dict[str, dict[str, Any]]:
    """Deal whole optimizer state out as the parameters it belongs to are."""
    parameters = dict(module.named_parameters())
    return {
        name: {
            key: shard_like(value, parameters.get(name)) if isinstance(value, Tensor) else value
            for key, value in values.items()
        }
        for name, values in named.items()
    }


def from_share(share: Any, target: Tensor) -> Any:
    """Put a rank's own share back into a tensor that is laid out like ``target``; inverse of :func:`own_share`.

    Args:
        share: What :func:`own_share` gave on this rank, or a value that is no share, such as a step count.
        target: The parameter it belongs to.
    """
    if (
        not isinstance(target, DTensor)
        or not isinstance(share, Tensor)
        or share.shape != target.to_local().shape
    ):
        return share
    return DTensor.from_local(
        # memory of its own, which can be let go, unlike that of a file
        share.to(target.device, copy=True),
        target.device_mesh,
        target.placements,
        run_check=False,
        shape=target.shape,
        stride=target.stride(),
    )
