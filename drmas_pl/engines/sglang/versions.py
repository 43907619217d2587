"""What differs between the versions of sglang that are supported, in one place.

Place in the data flow: a :class:`ServerApi` is made from the version that a running server reports; everything that builds a request
or a command line asks it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from drmas_pl.errors import EngineError

Device = Literal["cuda", "cpu"]
OLDEST = (0, 5, 3)
# Paths under which a server tells its settings and sizes; the second one is the older name.
INFO_PATHS = ("/server_info", "/get_server_info")
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
        numbers = [int(part) for part in re.findall(r"\d+", text)[:3]]
        if len(numbers) < 3:
            raise EngineError(
                f"the server reports the version {text!r}; expected three numbers such as 0.5.21"
            )
        version = (numbers[0], numbers[1], numbers[2])
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


def device_flags(device: Device) -> dict[str, str | bool]:
    """Return the flags with which a server computes on ``device``.

    >>> device_flags("cuda")
    {}
    """
    if device == "cuda":
        return {}
    return {"device": "cpu", "attention-backend": "torch_native", "disable-overlap-schedule": True}


def device_environment(device: Device) -> dict[str, str]:
    """Return the environment variables that go with :func:`device_flags`.

    >>> device_environment("cpu")
    {'SGLANG_USE_CPU_ENGINE': '1'}
    """
    return {} if device == "cuda" else {"SGLANG_USE_CPU_ENGINE": "1"}
