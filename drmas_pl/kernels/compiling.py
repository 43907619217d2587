"""Compile what lies between a policy's attention and its products, so that an update reads and writes memory less often.

Norms and feed-forward blocks are compiled each on its own and for all lengths: layers share a graph, and everything that happens
around them (attention, checkpointing, gradient exchange of ranks, sharded weights) happens as without.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from drmas_pl.errors import ConfigError

# graphs of one process: models, types, with and without gradient; the compiler's own limit of 8 is soon reached
_MOST_GRAPHS = 64
_COMPILERS = {"cpu": ("CXX", ("g++", "clang++")), "cuda": ("CC", ("gcc", "clang"))}


def compile_layers(policy: nn.Module, *, device: torch.device) -> None:
    """Compile the norms and feed-forward blocks of a policy in place, for computation with gradient; names of weights stay.

    Without gradient, as in an engine that generates with the same weights, they are computed as before, bit for bit. Nothing is
    compiled before the first use.

    Args:
        policy: A Transformers model, possibly wrapped by PEFT; on one base that several policies share, the first call counts.
        device: Where it will train.

    Raises:
        ConfigError: The machine has no compiler, or the model nothing to compile.
    """
    _check_compiler(device.type)
    parts = list(_parts(policy))
    if not parts:
        raise ConfigError(
            f"{type(policy).__name__} has neither norms nor feed-forward blocks to compile; set update.compile=false"
        )
    for part in parts:
        if part._compiled_call_impl is None:
            part.compile(dynamic=True)
            compiled: Any = part._compiled_call_impl
            # nn.Module leaves this out of copies, so that a copied model is not computed with the weights of the original
            part._compiled_call_impl = _with_gradient(compiled, part._call_impl)


def compiler_settings() -> AbstractContextManager[None]:
    """Return a context for calls of compiled functions in which none is left uncompiled because there are many."""
    # imported by torch.compile alone, since it is slow to load
    import torch._dynamo.config

    settings: Any = torch._dynamo.config
    # graphs that lie within a layer gain nothing from being split at the buckets of DDP, and some cannot be
    context: AbstractContextManager[None] = settings.patch(cache_size_limit=_MOST_GRAPHS, optimize_ddp=False)
    return context


def _with_gradient(compiled: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        with compiler_settings():
            return compiled(*args, **kwargs)

    return call


def _parts(policy: nn.Module) -> Iterator[nn.Module]:
    """Yield the norms, and the feed-forward blocks of layers; which experts a token takes is not known to a compiler."""
    for module in policy.modules():
        if type(module).__name__.endswith("Norm") and not list(module.children()):
            yield module
        block = getattr(module, "mlp", None)
        if isinstance(block, nn.Module) and not hasattr(block, "experts"):
            yield block


def _check_compiler(kind: str) -> None:
    """Raise where a first step would fail for want of a compiler."""
    variable, names = _COMPILERS.get(kind, _COMPILERS["cpu"])
    if not any(map(shutil.which, (os.environ.get(variable) or names[0], *names))):
        raise ConfigError(
            f"update.compile needs a compiler, found none of ${variable}, {', '.join(names)}; "
            f"install {names[0]} or set update.compile=false"
        )
    if kind == "cuda" and find_spec("triton") is None:
        raise ConfigError(
            "update.compile needs Triton on CUDA devices; install triton or set update.compile=false"
        )
