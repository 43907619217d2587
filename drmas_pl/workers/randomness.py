"""Dropout, router noise and other random layers of a policy, which are off wherever log-probs are compared.

Engines sample without them. An update that drew random numbers would compare the log-probs of two different models, and ratios would
not start at 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from drmas_pl.kernels.activation_checkpointing import recomputing
from drmas_pl.models.module_modes import evaluating

# parts of the names under which layers of Transformers keep the strength of their noise
_NOISES = ("drop", "jitter")


@contextmanager
def ready_to_learn(module: nn.Module, *, dropout: bool = False) -> Iterator[None]:
    """Hold a module ready for updates: in evaluation mode, in which engines sample, or in training mode with ``dropout``.

    Activation checkpointing goes on in both. Afterwards the module is in evaluation mode.
    """
    with ExitStack() as stack:
        stack.callback(module.eval)
        module.train(dropout)
        if not dropout:
            stack.enter_context(recomputing(module))
        yield


def random_layers(policy: nn.Module) -> list[str]:
    """List what draws random numbers in training mode, as ``Class.attribute``, sorted.

    >>> random_layers(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
    ['Sequential.1']
    """
    found = set()
    for module in policy.modules():
        own = {name: child.p for name, child in module.named_children() if isinstance(child, _DropoutNd)}
        if not isinstance(module, _DropoutNd):
            own |= {name: value for name, value in vars(module).items() if _is_noise(name, value)}
        found |= {f"{type(module).__name__}.{name}" for name, strength in own.items() if strength > 0}
    return sorted(found)


@torch.no_grad()
def layer_drawing_in_evaluation(policy: nn.Module, ids: Sequence[int], device: torch.device) -> str | None:
    """Return the class of a layer whose output differs between two equal forward passes in evaluation mode; None if all are equal.

    Args:
        policy: Causal language model.
        ids: A few token ids.
        device: Where the policy is.
    """
    tokens = torch.tensor([list(ids)], device=device)
    devices = [device] if device.type != "cpu" else []
    with evaluating(policy), torch.random.fork_rng(devices, device_type=device.type):
        first, second = (_trace(policy, tokens) for _ in range(2))
    for (name, *before), (_, *after) in zip(first, second):
        same_input, same_output = (
            len(a) == len(b) and all(map(torch.equal, a, b)) for a, b in zip(before, after, strict=True)
        )
        if same_input and not same_output:
            return name
    return None


def _is_noise(name: str, value: object) -> bool:
    return isinstance(value, float) and any(part in name for part in _NOISES)


def _trace(policy: nn.Module, tokens: Tensor) -> list[tuple[str, list[Tensor], list[Tensor]]]:
    """Run the policy; return class, inputs and outputs of its modules in the order in which they finish."""
    inputs: list[list[Tensor]] = []
    trace: list[tuple[str, list[Tensor], list[Tensor]]] = []

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        # copied, since a layer may write over its input
        inputs.append([*_tensors(args), *_tensors(kwargs)])

    def end(module: nn.Module, args: Any, output: Any) -> None:
        trace.append((type(module).__name__, inputs.pop(), _tensors(output)))

    with ExitStack() as stack:
        for module in policy.modules():
            stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(end).remove)
        policy(input_ids=tokens, use_cache=False)
    return trace


def _tensors(value: Any) -> list[Tensor]:
    """Copy the tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return [value.detach().clone()]
    parts = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    )
    return [tensor for part in parts for tensor in _tensors(part)]
