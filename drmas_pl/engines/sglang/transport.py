"""Ways to bring a policy's weights to a server.

=========== ================================================== ==========================================================
transport   how the weights travel                             where
=========== ================================================== ==========================================================
``disk``    a Transformers folder that both sides can read      anywhere, several copies of the weights included
``group``   broadcasts of a torch.distributed group             NCCL between GPUs, gloo otherwise
``tensor``  handles of GPU memory, or the bytes themselves      server on the trainer's own GPU; a CPU server for small models
adapter     a folder with the LoRA adapter alone                policies with PEFT adapters, whatever else is configured
=========== ================================================== ==========================================================

A transport is called between pause and continue and gives the server the new version's name with its last message. NCCL and GPU
memory handles need GPUs and have not been run in this project's tests, which see gloo and bytes instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from torch import nn

from drmas_pl.engines.sglang.server import Server
from drmas_pl.errors import EngineError

Sync = Literal["disk", "group", "tensor"]


class Transport(ABC):
    """Brings weights to one server.

    Attributes:
        adapter: Name of the LoRA adapter that requests must ask for; None where the weights themselves are replaced.
        reaches_all: Whether it reaches every data-parallel copy of the weights.
        replaces: Whether it replaces the server's own weights, and the name of their version with them, for which the server must pause.
    """

    adapter: str | None = None
    reaches_all = False
    replaces = True

    @abstractmethod
    def push(self, server: Server, policy: nn.Module, version: int) -> None:
        """Replace the server's weights by the policy's.

        Raises:
            EngineError: The server did not take them.
        """

    def forget(self) -> None:
        """Drop what belongs to a server that is gone."""

    def close(self) -> None:
        """Release every resource for good."""
        self.forget()


def expect_success(answer: Any, what: str) -> None:
    """Raise unless the server says that it did what it was asked to; status 200 alone is no proof."""
    if not (isinstance(answer, dict) and answer.get("success")):
        message = answer.get("message") or answer.get("error_message") if isinstance(answer, dict) else answer
        raise EngineError(f"the server did not {what}: {message}")
