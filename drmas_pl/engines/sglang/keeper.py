"""Owns a server: starts it from the policy's weights, replaces it when it is gone, and ends it when its last engine is closed.

Engines of policies that are adapters on one base share a keeper, and with it the server. Every one of them works in a thread of its
own; whoever starts, ends, prepares or puts the server to sleep holds the keeper's lock meanwhile.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drmas_pl.engines.sglang.residency import Release, Residency
from drmas_pl.engines.sglang.server import Server, attach, launch
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.sglang.versions import Device
from drmas_pl.engines.sglang.weights import base_model, write_folder


class ServerManager:
    """Keeps one server.

    Attributes:
        server: The server, or None while none runs.
        residency: What it has released.
        terms: What this keeper was built with, beside policy and tokenizer.
        lock: Held by whoever changes anything about the server.
        devices: GPUs that it may use; none given leaves that to the environment.

    Args:
        policy: Model whose weights a new server starts from.
        tokenizer: Its tokenizer.
        python: Interpreter of sglang's environment, to start servers with.
        url: Address of a running server, instead of ``python``.
        settings: How servers are started.
        folder: Where weights and the server's output are written; None takes a temporary one.
        release: What the server gives back while others train; None releases all on a GPU of ours and nothing elsewhere.
        client: Arguments of the HTTP client beside the address.
    """

    def __init__(
        self,
        policy: nn.Module,
        tokenizer: Any,
        *,
        python: str | None,
        url: str | None,
        settings: ServerSettings,
        folder: Path | None,
        release: Release | None,
        client: Mapping[str, Any],
    ) -> None:
        self.policy, self.tokenizer = policy, tokenizer
        self.python, self.url, self.settings = python, url, settings
        self.client = client
        self.terms = {
            "python": python,
            "url": url,
            "settings": settings,
            "folder": folder,
            "release": release,
            "client": client,
        }
        on_gpu = url is None and self.device == "cuda"
        self.release: Release = release or ("all" if on_gpu else "nothing")
        self.memory_saver = on_gpu and self.release != "nothing"
        self.residency = Residency(self.release, measured=on_gpu)
        self.server: Server | None = None
        self.lock = threading.RLock()
        self.devices: Sequence[str] = ()
        self.starts = 0
        self._users: set[object] = set()
        self._awake: set[object] = set()
        self._given = folder
        self._root: Path | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the server's weights."""
        return (
            getattr(torch, self.settings.dtype)
            if self.settings.dtype
            else next(base_model(self.policy).parameters()).dtype
        )

    @property
    def device(self) -> Device:
        """Where our servers compute."""
        if self.settings.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.settings.device

    @property
    def keeps_weights(self) -> bool:
        """Whether the server has the weights that it released when it takes their memory back."""
        return self.settings.weights_backup and self.memory_saver

    @property
    def root(self) -> Path:
        """Folder of this server alone; made when it is first asked for."""
        if self._root is None:
            if self._given is None:
                self._root = Path(tempfile.mkdtemp(prefix="drmas-sglang-"))
            else:
                self._root = self._given / f"sglang-{uuid.uuid4().hex[:8]}"
                self._root.mkdir(parents=True, mode=0o700)
        return self._root

    def start(self, version: int) -> Server:
        """Start a server with the policy's weights, or connect to the running one, whose weights are not ours.

        Args:
            version: Version of the policy's weights.

        Raises:
            EngineError: It does not answer.
        """
        self.starts += 1
        if self.url is not None:
            self.server = attach(self.url, start_timeout=self.settings.start_timeout, client=self.client)
            return self.server
        assert self.python is not None
        model = write_folder(self.policy, self.tokenizer, self.root / "start", self.dtype)
        try:
            self.server = launch(
                self.python,
                self.settings,
                model=model,
                device=self.device,
                dtype=str(self.dtype).removeprefix("torch."),
                memory_saver=self.memory_saver,
                devices=self.devices,
                version=version,
                log_file=self.root / f"server-{self.starts}.log",
                client=self.client,
            )
        finally:
            shutil.rmtree(model, ignore_errors=True)
        return self.server

    def drop(self, lost: Server | None = None) -> None:
        """End the server, as far as it is ours; where ``lost`` is given, only if it has not been replaced since."""
        with self.lock:
            if self.server is None or lost not in (None, self.server):
                return
            server, self.server = self.server, None
            self.residency.forget()
            server.stop(self.settings.stop_timeout)

    def join(self, user: object) -> None:
        """Count an engine among those that the server is there for."""
        self._users.add(user)

    def rouse(self, user: object) -> None:
        """Note that an engine is awake."""
        with self.lock:
            self._awake.add(user)

    def rest(self, user: object, device: torch.device) -> None:
        """Note that an engine sleeps; with the last one the server releases what is configured.

        Args:
            user: The engine.
            device: The trainer's device.

        Raises:
            EngineError: Memory was not released, or the server is gone.
        """
        with self.lock:
            self._awake.discard(user)
            if self.server is not None and not self._awake:
                self.residency.sleep(self.server.client, device)

    def leave(self, user: object) -> None:
        """Count an engine no longer; with the last one the server ends and what was written is removed, except logs in a given folder."""
        with self.lock:
            self._awake.discard(user)
            self._users.discard(user)
            if self._users:
                return
            self.drop()
            if self._root is not None and self._given is None:
                shutil.rmtree(self._root, ignore_errors=True)
                self._root = None
