"""Check the engine's settings and choose its transport."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import get_args

import torch
from torch import nn

from drmas_pl.engines.sglang.folders import AdapterTransport, DiskTransport
from drmas_pl.engines.sglang.keeper import Keeper
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.sglang.streams import GroupTransport, TensorTransport
from drmas_pl.engines.sglang.transport import Sync, Transport
from drmas_pl.engines.sglang.weights import has_adapters
from drmas_pl.errors import ConfigError

PYTHON_VARIABLE = "DRMAS_ENGINE_PYTHON"


def check_address(python: str | None, url: str | None, *, max_concurrent: int, max_restarts: int) -> None:
    """Raise unless exactly one of a usable interpreter and an address is given and the bounds make sense.

    Raises:
        ConfigError: See above.
    """
    if (python is None) == (url is None):
        given = "neither" if python is None else "both"
        raise ConfigError(
            f"the sglang engine needs engine.python=PYTHON_OF_ITS_ENVIRONMENT (or the variable {PYTHON_VARIABLE}) or "
            f"engine.url=ADDRESS of a running server, got {given}; see docs/engines.md"
        )
    if python is not None and shutil.which(python) is None:
        raise ConfigError(f"engine.python={python!r} is no program; give the python of the environment in which sglang is installed")
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"engine.url={url!r} is no address; write it as http://host:port")
    if max_concurrent < 1 or max_restarts < 0:
        raise ConfigError(
            f"engine.max_concurrent must be at least 1 and engine.max_restarts at least 0, got {max_concurrent} and {max_restarts}"
        )


def lora_settings(policy: nn.Module, settings: ServerSettings) -> ServerSettings:
    """Let the server serve the policy's adapters, if it has any and nothing else was asked for."""
    if not has_adapters(policy) or settings.lora_rank is not None:
        return settings
    configs = list(policy.peft_config.values())  # type: ignore[operator]
    named = [["all"] if isinstance(config.target_modules, str) else config.target_modules for config in configs]
    # servers know modules by the last part of their names
    targets = sorted({name.rpartition(".")[2] for names in named for name in names})
    return replace(settings, lora_rank=max(config.r for config in configs), lora_targets=tuple(targets))


def make_transport(sync: Sync, keeper: Keeper) -> Transport:
    """Build what brings weights to the keeper's servers.

    Raises:
        ConfigError: The way is unknown, or does not reach several copies of the weights.
    """
    if sync not in get_args(Sync):
        raise ConfigError(f"engine.sync must be one of {list(get_args(Sync))}, got {sync!r}")
    settings = keeper.settings
    if has_adapters(keeper.policy):
        return AdapterTransport(folder=lambda: keeper.root)
    if sync == "disk":
        return DiskTransport(keeper.tokenizer, folder=lambda: keeper.root, dtype=keeper.dtype)
    if settings.data_parallel > 1:
        raise ConfigError(
            f"engine.sync={sync} reaches one copy of the weights, but data_parallel is {settings.data_parallel}; use sync=disk"
        )
    device = torch.device("cuda", torch.cuda.current_device()) if keeper.device == "cuda" else None
    if sync == "group":
        return GroupTransport(host=settings.host, timeout=settings.start_timeout, dtype=keeper.dtype, device=device)
    return TensorTransport(dtype=keeper.dtype, device=device)
