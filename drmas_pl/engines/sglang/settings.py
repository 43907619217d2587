"""Settings of a server that this library starts, the command line that they become, and what differs between sglang's versions.

A :class:`ServerApi` is made from the version that a running server reports; everything that builds a request asks it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from drmas_pl.errors import EngineError
from drmas_pl.utils.validation import check_fields

Device = Literal["cuda", "cpu"]
OLDEST = (0, 5, 3)
# Paths under which a server tells its settings and sizes; the second one is the older name.
INFO_PATHS = ("/server_info", "/get_server_info")
# Flags and environment variables with which a server computes on a device.
_DEVICE_FLAGS: dict[Device, dict[str, str | bool]] = {
    "cuda": {},
    "cpu": {"device": "cpu", "attention-backend": "torch_native", "disable-overlap-schedule": True},
}
DEVICE_ENVIRONMENT: dict[Device, dict[str, str]] = {"cuda": {}, "cpu": {"SGLANG_USE_CPU_ENGINE": "1"}}
# A request's prompt must stay this much below the context length that the server is given.
RESERVED_TOKENS = 6


@dataclass(frozen=True, slots=True)
class ServerApi:
    """How to speak to one version.

    Attributes:
        version: Three numbers.
    """

    version: tuple[int, int, int]

    @classmethod
    def of(cls, text: str) -> ServerApi:
        """Read a version as a server reports it.

        Raises:
            EngineError: It is no version, or older than what is supported.

        >>> ServerApi.of("0.5.21.post1").version
        (0, 5, 21)
        """
        match = re.search(r"(\d+)\D+(\d+)\D+(\d+)", text)
        if match is None:
            raise EngineError(
                f"the server reports the version {text!r}; expected three numbers such as 0.5.21"
            )
        version = (int(match[1]), int(match[2]), int(match[3]))
        if version < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            raise EngineError(
                f"the server runs sglang {text}, but {wanted} or newer is needed: pip install 'sglang>={wanted}'"
            )
        return cls(version)

    @property
    def has_update_session(self) -> bool:
        """Whether weights sent by a group or as tensors belong between ``begin_weight_update`` and ``end_weight_update``."""
        return self.version >= (0, 5, 21)

    @property
    def rank_field(self) -> str:
        """Name of the request's field that chooses a data-parallel rank."""
        return "routed_dp_rank" if self.version >= (0, 5, 10) else "data_parallel_rank"

    @property
    def seed_bits(self) -> int:
        """Bits of a request's sampling seed; older samplers keep it in a signed 32-bit number."""
        return 63 if self.version >= (0, 5, 10) else 31

    def seed(self, seed: int) -> int:
        """Fit a seed into the bits that the sampler keeps.

        >>> ServerApi.of("0.5.3").seed(2**40 + 5), ServerApi.of("0.5.21").seed(2**40 + 5) == 2**40 + 5
        (5, True)
        """
        return seed % (1 << self.seed_bits)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server is started.

    Attributes:
        device: ``cuda``, ``cpu``, or ``auto`` for CUDA where there is any.
        dtype: Data type of its weights; None takes the policy's.
        tensor_parallel: GPUs that share one copy of the weights.
        data_parallel: Copies of the weights; requests of one task go to the same copy.
        base_gpu_id: First GPU of the server.
        memory_fraction: Share of a GPU's memory for weights and cache; None leaves it to sglang.
        max_total_tokens: Bound on the tokens in its cache; None leaves it to sglang.
        context_length: Largest number of prompt plus response tokens; None takes the policy's.
        seeded: Sample every request with its own seed, which sglang does in its deterministic mode only.
        weights_backup: Keep a copy of released weights in CPU memory, so that they need not be sent again when nothing changed.
        lora_rank: Largest rank of adapters; None serves none.
        lora_targets: Modules that adapters may change, as in PEFT's ``target_modules``.
        arguments: Further flags of ``sglang.launch_server`` without their dashes; True sets a flag that takes no value.
        environment: Further environment variables of the server.
        host: Address it listens on.
        port: Port it listens on; None takes a free one.
        start_timeout: Seconds within which it must answer.
        stop_timeout: Seconds it gets to stop by itself.
    """

    device: Literal["auto", "cuda", "cpu"] = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    tensor_parallel: int = 1
    data_parallel: int = 1
    base_gpu_id: int = 0
    memory_fraction: float | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    seeded: bool = True
    weights_backup: bool = False
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | int | float] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int | None = None
    start_timeout: float = 600.0
    stop_timeout: float = 20.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("tensor_parallel", "data_parallel", "max_total_tokens", "context_length", "lora_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"engine.server.{name} must be at least 1, got {value}")
        if self.memory_fraction is not None and not 0 < self.memory_fraction < 1:
            raise ValueError(f"engine.server.memory_fraction must be in (0, 1), got {self.memory_fraction}")
        if self.start_timeout <= 0 or self.stop_timeout < 0:
            raise ValueError(
                f"engine.server time-outs must be positive, got {self.start_timeout} and {self.stop_timeout}"
            )
        object.__setattr__(self, "lora_targets", tuple(self.lora_targets))


def launch_flags(
    settings: ServerSettings,
    *,
    model: Path,
    device: Device,
    dtype: str,
    port: int,
    memory_saver: bool,
    version: int,
) -> list[str]:
    """Return the words of the command line behind ``sglang.launch_server``.

    Args:
        settings: What was asked for.
        model: Folder with the weights to start from.
        device: Where to compute.
        dtype: Data type of the weights.
        port: Port to listen on.
        memory_saver: Whether memory is released while others train, which only works if asked for at the start.
        version: Version of the weights in ``model``.

    >>> launch_flags(ServerSettings(), model=Path("m"), device="cuda", dtype="bfloat16", port=1, memory_saver=False, version=3)[:4]
    ['--model-path', 'm', '--host', '127.0.0.1']
    """
    flags: dict[str, Any] = {
        "model-path": model,
        "host": settings.host,
        "port": port,
        "dtype": dtype,
        "weight-version": version,
        "tensor-parallel-size": settings.tensor_parallel,
        "data-parallel-size": settings.data_parallel,
        "base-gpu-id": settings.base_gpu_id,
        "mem-fraction-static": settings.memory_fraction,
        "max-total-tokens": settings.max_total_tokens,
        "context-length": settings.context_length,
        "enable-deterministic-inference": settings.seeded,
        "enable-memory-saver": memory_saver,
        "enable-weights-cpu-backup": memory_saver and settings.weights_backup,
        "enable-lora": settings.lora_rank is not None,
        "max-lora-rank": settings.lora_rank,
        "lora-target-modules": list(settings.lora_targets) or None,
        **_DEVICE_FLAGS[device],
        **settings.arguments,
    }
    return [word for name, value in flags.items() for word in _words(name.replace("_", "-"), value)]


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
