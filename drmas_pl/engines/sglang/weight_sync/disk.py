"""Weight syncs that write a folder and have the server load it: whole weights, or an adapter alone."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.weight_sync.base import WeightSync, expect_success, has_adapters, write_folder


class DiskSync(WeightSync):
    """Writes a folder and has the server load it.

    Args:
        tokenizer: Written along, so that the folder is complete.
        folder: Says where to write; the server must see the same path.
        dtype: Type of the weights on disk; None keeps the policy's.
    """

    reaches_all = True

    def __init__(
        self, tokenizer: Any, *, folder: Callable[[], Path], dtype: torch.dtype | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.folder = folder
        self.dtype = dtype

    def push(self, server: Server, policy: nn.Module, version: int) -> None:
        # a folder of its own each time: a server may still have the files of the last one mapped into memory
        target = self.folder() / f"weights-{version}-{uuid.uuid4().hex[:8]}"
        try:
            write_folder(policy, self.tokenizer, target, self.dtype)
            body = {"model_path": str(target.resolve()), "weight_version": str(version), "flush_cache": True}
            expect_success(server.client.post("/update_weights_from_disk", body), "load weights from disk")
        finally:
            shutil.rmtree(target, ignore_errors=True)


class AdapterSync(WeightSync):
    """Loads each version of a LoRA adapter under a name of its own and unloads the one before; the base stays as it is.

    A name is never used twice, since servers answer from what they loaded under it first. Others may generate meanwhile. A policy that is
    the base alone has nothing to load.

    Args:
        folder: Says where to write adapters; the server must see the same path.
    """

    reaches_all = True
    replaces = False

    def __init__(self, *, folder: Callable[[], Path]) -> None:
        self.folder = folder
        self.adapter = None

    def push(self, server: Server, policy: nn.Module, version: int) -> None:
        if not has_adapters(policy):
            return
        name = f"v{version}-{uuid.uuid4().hex[:8]}"
        target = self.folder() / name
        try:
            policy.save_pretrained(target)  # type: ignore[operator]
            body = {"lora_name": name, "lora_path": str(target.resolve())}
            expect_success(server.client.post("/load_lora_adapter", body), "load the adapter")
        finally:
            shutil.rmtree(target, ignore_errors=True)
        before = self.adapter
        # known from here on: should unloading fail, requests must still ask for the newest one
        self.adapter = name
        if before is not None:
            answer = server.client.post("/unload_lora_adapter", {"lora_name": before})
            expect_success(answer, "unload the adapter before")

    def forget(self) -> None:
        self.adapter = None
