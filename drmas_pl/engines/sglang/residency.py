"""Who has the GPU's memory: the order in which a server gives it back and takes it again.

::

    sleep:  pause → flush the cache → release
    wake:   resume weights → (weights are sent) → resume cache → continue

Released weights are lost unless the server keeps a copy, so they are sent before anything is generated. Memory is only really
released by a server on a GPU that was started with its memory saver; elsewhere the same requests are answered and free nothing.
"""

from __future__ import annotations

import logging
from typing import Literal, get_args

import torch

from drmas_pl.engines.sglang.client import Client
from drmas_pl.engines.sglang.memory import check_released, free_bytes

log = logging.getLogger(__name__)
Release = Literal["nothing", "cache", "all"]
WEIGHTS, CACHE = "weights", "kv_cache"
TAGS: dict[Release, tuple[str, ...]] = {"nothing": (), "cache": (CACHE,), "all": (CACHE, WEIGHTS)}
assert set(TAGS) == set(get_args(Release))


class Residency:
    """What one server has released, and whether it is paused.

    Args:
        release: What it gives back while others train.
        measured: Whether it shares a GPU with this process, so that what it frees can be seen.
    """

    def __init__(self, release: Release, *, measured: bool) -> None:
        self.release, self.measured = release, measured
        self.forget()

    def forget(self) -> None:
        """Expect a new server: all memory held, not paused."""
        self.released: set[str] = set()
        self.paused = False

    def pause(self, client: Client) -> None:
        """Let the server finish or abort what it does and begin nothing new."""
        if not self.paused:
            client.post("/pause_generation")
            self.paused = True

    def sleep(self, client: Client, device: torch.device) -> None:
        """Release what is configured.

        Args:
            client: Speaks to the server.
            device: The trainer's device.

        Raises:
            EngineError: Memory was not released although the server says so.
        """
        tags = [tag for tag in TAGS[self.release] if tag not in self.released]
        if not tags:
            return
        self.pause(client)
        client.post("/flush_cache")
        before = free_bytes(device) if self.measured else None
        client.post("/release_memory_occupation", {"tags": tags})
        self.released.update(tags)
        log.debug(
            "released %s: %d MiB",
            tags,
            check_released(before, free_bytes(device) if self.measured else None) >> 20,
        )

    def resume_weights(self, client: Client) -> None:
        """Take the memory of the weights back; what it holds is undefined unless the server kept a copy."""
        self._resume(client, WEIGHTS)

    def resume_cache(self, client: Client) -> None:
        """Take the memory of the cache back and let the server generate."""
        self._resume(client, CACHE)
        if self.paused:
            client.post("/continue_generation")
            self.paused = False

    def _resume(self, client: Client, tag: str) -> None:
        if tag in self.released:
            client.post("/resume_memory_occupation", {"tags": [tag]})
            self.released.discard(tag)
