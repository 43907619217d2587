"""Check the engine's settings, find the manager of its server and choose how weights travel."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args
from weakref import WeakSet

import torch
from torch import nn

from drmas_pl.engines.sglang.server_manager import ServerManager
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.sglang.weight_sync.base import Sync, WeightSync, has_adapters
from drmas_pl.engines.sglang.weight_sync.disk import AdapterSync, DiskSync
from drmas_pl.engines.sglang.weight_sync.tensor import GroupSync, TensorSync
from drmas_pl.errors import ConfigError
from drmas_pl.models.adapters import AdapterPolicy

# Files that a process opens beside the connections of its requests.
OTHER_FILES = 256
PYTHON_VARIABLE = "DRMAS_ENGINE_PYTHON"
# managers of bases with adapters, where the engines of these find each other; they go with the last engine that holds one
_MANAGERS: WeakSet[ServerManager] = WeakSet()


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
        raise ConfigError(
            f"engine.python={python!r} is no program; give the python of the environment in which sglang is installed"
        )
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"engine.url={url!r} is no address; write it as http://host:port")
    if max_concurrent < 1 or max_restarts < 0:
        raise ConfigError(
            f"engine.max_concurrent must be at least 1 and engine.max_restarts at least 0, got {max_concurrent} and {max_restarts}"
        )
    check_open_files(max_concurrent)


def check_open_files(max_concurrent: int) -> None:
    """Raise unless this process may have a connection for each request: too few of them would look like a server that is gone.

    Raises:
        ConfigError: It may not.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and max_concurrent + OTHER_FILES > limit:
        raise ConfigError(
            f"engine.max_concurrent={max_concurrent} takes as many connections, but this process may have {limit} open files; "
            f"raise that with `ulimit -n {max_concurrent + OTHER_FILES}` before the start, or lower engine.max_concurrent"
        )


def find_manager(policy: nn.Module, tokenizer: Any, **terms: Any) -> ServerManager:
    """Return a manager for the policy's server: that of its base, if another adapter's engine has one on the same terms, or a new one.

    Args:
        policy: Model whose weights a new server starts from.
        tokenizer: Its tokenizer.
        **terms: Further arguments of :class:`ServerManager`.
    """
    base = policy.shared if isinstance(policy, AdapterPolicy) else None
    if base is None:
        return ServerManager(policy, tokenizer, **terms)
    for manager in _MANAGERS:
        if getattr(manager.policy, "shared", None) is base and manager.terms == terms:
            return manager
    manager = ServerManager(policy, tokenizer, **terms)
    _MANAGERS.add(manager)
    return manager


def check_devices(settings: ServerSettings, devices: Sequence[str]) -> None:
    """Raise unless the server finds all the GPUs that it is set to use.

    Args:
        settings: How it is started.
        devices: Those of the group's ranks on its machine.

    Raises:
        ConfigError: There are too few.

    >>> check_devices(ServerSettings(tensor_parallel=2), ["0", "1"])
    """
    spread = any(settings.arguments.get(name) for name in ("enable_dp_attention", "enable-dp-attention"))
    wanted = settings.base_gpu_id + settings.tensor_parallel * (1 if spread else settings.data_parallel)
    if wanted > len(devices):
        raise ConfigError(
            f"the server needs {wanted} GPUs (engine.server.tensor_parallel={settings.tensor_parallel}, "
            f"data_parallel={settings.data_parallel}, base_gpu_id={settings.base_gpu_id}), but the worker group's ranks have "
            f"{len(devices)} on the first one's machine, on which the server runs; lower them, or raise the group's number of ranks there"
        )


def lora_settings(policy: nn.Module, settings: ServerSettings) -> ServerSettings:
    """Let the server serve the adapters on the policy's base, if there are any, and keep the base, which is sent only once."""
    on_base = policy.shared.model if isinstance(policy, AdapterPolicy) else policy
    if not has_adapters(on_base):
        return settings
    settings = replace(settings, weights_backup=True)
    if settings.lora_rank is not None:
        return settings
    configs: list[Any] = list(on_base.peft_config.values())  # type: ignore[operator]
    named = [
        ["all"] if isinstance(config.target_modules, str) else config.target_modules for config in configs
    ]
    # servers know modules by the last part of their names
    targets = sorted({name.rpartition(".")[2] for names in named for name in names})
    return replace(settings, lora_rank=max(config.r for config in configs), lora_targets=tuple(targets))


def make_weight_sync(sync: Sync, manager: ServerManager) -> WeightSync:
    """Build what brings weights to the manager's servers.

    Raises:
        ConfigError: The way is unknown, or does not reach several copies of the weights.
    """
    if sync not in get_args(Sync):
        raise ConfigError(f"engine.sync must be one of {list(get_args(Sync))}, got {sync!r}")
    settings = manager.settings
    if has_adapters(manager.policy) or isinstance(manager.policy, AdapterPolicy):
        return AdapterSync(folder=lambda: manager.root)
    if sync == "disk":
        return DiskSync(manager.tokenizer, folder=lambda: manager.root, dtype=manager.dtype)
    if settings.data_parallel > 1:
        raise ConfigError(
            f"engine.sync={sync} reaches one copy of the weights, but data_parallel is {settings.data_parallel}; use sync=disk"
        )
    # a policy that was offloaded rests on the CPU, from where neither NCCL nor memory handles can send
    device = torch.device("cuda", torch.cuda.current_device()) if manager.device == "cuda" else None
    if sync == "group":
        return GroupSync(
            host=settings.host, timeout=settings.start_timeout, dtype=manager.dtype, device=device
        )
    return TensorSync(dtype=manager.dtype, device=device)
