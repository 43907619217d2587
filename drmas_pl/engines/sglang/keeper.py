"""Owns one engine's server: starts it from the policy's weights, replaces it when it is gone, and ends it at last."""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drmas_pl.engines.sglang.server import Server, attach, launch
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.sglang.versions import Device
from drmas_pl.engines.sglang.weights import base_model, write_folder

log = logging.getLogger(__name__)


class Keeper:
    """Keeps one server.

    Args:
        policy: Model whose weights a new server starts from.
        tokenizer: Its tokenizer.
        python: Interpreter of sglang's environment, to start servers with.
        url: Address of a running server, instead of ``python``.
        settings: How servers are started.
        folder: Where weights and the server's output are written; None takes a temporary one.
        memory_saver: Whether the server must be able to release memory.
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
        memory_saver: bool,
        client: Mapping[str, Any],
    ) -> None:
        self.policy, self.tokenizer = policy, tokenizer
        self.python, self.url, self.settings = python, url, settings
        self.memory_saver, self.client = memory_saver, client
        self.server: Server | None = None
        self.starts = 0
        self._given = folder
        self._root: Path | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the server's weights."""
        return getattr(torch, self.settings.dtype) if self.settings.dtype else next(base_model(self.policy).parameters()).dtype

    @property
    def device(self) -> Device:
        """Where our servers compute."""
        if self.settings.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.settings.device

    @property
    def root(self) -> Path:
        """Folder of this engine alone; made when it is first asked for."""
        if self._root is None:
            if self._given is None:
                self._root = Path(tempfile.mkdtemp(prefix="drmas-sglang-"))
            else:
                self._root = self._given / f"sglang-{uuid.uuid4().hex[:8]}"
                self._root.mkdir(parents=True)
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
                version=version,
                log_file=self.root / f"server-{self.starts}.log",
                client=self.client,
            )
        finally:
            shutil.rmtree(model, ignore_errors=True)
        return self.server

    def drop(self) -> None:
        """End the server, if there is one, as far as it is ours."""
        server, self.server = self.server, None
        if server is not None:
            server.stop(self.settings.stop_timeout)

    def close(self) -> None:
        """End the server and remove what was written; logs stay in a folder that was given."""
        self.drop()
        if self._root is not None and self._given is None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None
