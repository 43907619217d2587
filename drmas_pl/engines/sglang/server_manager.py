"""Owns a server: starts it from the policy's weights, replaces it when it is gone, and ends it when its last engine is closed.

Engines of policies that are adapters on one base share a manager, and with it the server. Every one of them works in a thread of its
own; whoever starts, ends, prepares or puts the server to sleep holds the manager's lock meanwhile.

The server gives the GPU's memory back and takes it again in a fixed order::

    sleep:  pause → flush the cache → release
    wake:   resume weights → (weights are sent) → resume cache → continue

A server answers a request a moment before it clears it away. Until then it refuses to flush its cache, and a request to release memory
or to take weights would end it. So pause and flush are repeated until it flushes, before weights are sent too.

Released weights are lost unless the server keeps a copy, so they are sent before anything is generated. Memory is only really
released by a server on a GPU that was started with its memory saver; elsewhere the same requests are answered and free nothing.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch
from torch import nn

from drmas_pl.engines.sglang.client import Client, RequestRefused
from drmas_pl.engines.sglang.server import Server, attach, launch
from drmas_pl.engines.sglang.settings import Device, ServerSettings
from drmas_pl.engines.sglang.weight_sync.base import base_model, write_folder
from drmas_pl.errors import EngineError

log = logging.getLogger(__name__)
Release = Literal["nothing", "cache", "all"]
WEIGHTS = "weights"
CACHE = "kv_cache"
# Seconds that a server gets to clear away what it was told to abort, and between two looks whether it has.
IDLE_SECONDS: Final = 60.0
IDLE_POLL_SECONDS: Final = 0.05
TAGS: dict[Release, tuple[str, ...]] = {"nothing": (), "cache": (CACHE,), "all": (CACHE, WEIGHTS)}
assert set(TAGS) == set(get_args(Release))


class MemoryOccupation:
    """What one server has released, and whether it is paused; a new server holds all its memory and is not paused.

    Attributes:
        released: Tags of the memory that it has given back.

    Args:
        release: What it gives back while others train.
        measured: Whether it shares a GPU with this process, so that what it frees can be seen.
    """

    def __init__(self, release: Release, *, measured: bool) -> None:
        self.release = release
        self.measured = measured
        self.released: set[str] = set()
        self._paused = False
        # whether it is known to have no requests, which stays so while it is paused
        self._idle = False

    def pause(self, client: Client) -> None:
        """Have the server abort what it does and begin nothing new, and wait until it is idle.

        Args:
            client: Speaks to the server.

        Raises:
            EngineError: It still has requests after ``IDLE_SECONDS``.
        """
        deadline = time.monotonic() + IDLE_SECONDS
        while not self._idle:
            # each pause aborts all requests, including one that arrived while the pause before it was answered
            client.post("/pause_generation")
            self._paused = True
            try:
                client.post("/flush_cache")
            except RequestRefused as error:
                if error.status != HTTPStatus.BAD_REQUEST:
                    raise
                self._check_time_left(client, deadline, error)
                time.sleep(IDLE_POLL_SECONDS)
            else:
                self._idle = True

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
        before = free_bytes(device) if self.measured else None
        client.post("/release_memory_occupation", {"tags": tags})
        # noted before it is measured: a server that freed too little has released the tags all the same
        self.released.update(tags)
        freed = check_released(before, free_bytes(device) if self.measured else None)
        log.debug("released %s: %d MiB", tags, freed >> 20)

    def resume_weights(self, client: Client) -> None:
        """Take the memory of the weights back; what it holds is undefined unless the server kept a copy."""
        self._resume(client, WEIGHTS)

    def resume_cache(self, client: Client) -> None:
        """Take the memory of the cache back and let the server generate."""
        self._resume(client, CACHE)
        if self._paused:
            client.post("/continue_generation")
            self._paused = self._idle = False

    def _check_time_left(self, client: Client, deadline: float, error: RequestRefused) -> None:
        if time.monotonic() >= deadline:
            raise EngineError(
                f"the server at {client.url} was told to abort all requests and still has some {IDLE_SECONDS:g} s later ({error}); it must "
                "serve nobody else; restart it"
            ) from error

    def _resume(self, client: Client, tag: str) -> None:
        if tag in self.released:
            client.post("/resume_memory_occupation", {"tags": [tag]})
            self.released.discard(tag)


class ServerManager:
    """Keeps one server.

    Attributes:
        server: The server, or None while none runs.
        memory: What the server has released.
        terms: What this manager was built with, beside policy and tokenizer.
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
        self.policy = policy
        self.tokenizer = tokenizer
        self.python = python
        self.url = url
        self.settings = settings
        self.client = client
        self.terms = {
            "python": python,
            "url": url,
            "settings": settings,
            "folder": folder,
            "release": release,
            "client": client,
        }
        self._on_our_gpu = url is None and self.device == "cuda"
        self.release: Release = release or ("all" if self._on_our_gpu else "nothing")
        self.memory_saver = self._on_our_gpu and self.release != "nothing"
        self.memory = MemoryOccupation(self.release, measured=self._on_our_gpu)
        self.server: Server | None = None
        # reentrant, since preparing a server may start it
        self.lock = threading.RLock()
        self.devices: Sequence[str] = ()
        self.starts = 0
        self._sessions: set[object] = set()
        self._awake: set[object] = set()
        self._given = folder
        self._root: Path | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the server's weights."""
        if self.settings.dtype:
            dtype: torch.dtype = getattr(torch, self.settings.dtype)
            return dtype
        return next(base_model(self.policy).parameters()).dtype

    @property
    def device(self) -> Device:
        """Where our servers compute."""
        if self.settings.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.settings.device

    @property
    def lost_weights(self) -> bool:
        """Whether the server has released its weights and kept no copy."""
        keeps_copy = self.settings.weights_backup and self.memory_saver
        return WEIGHTS in self.memory.released and not keeps_copy

    @property
    def root(self) -> Path:
        """Folder of this server alone; made when it is first asked for."""
        if self._root is None:
            if self._given is None:
                self._root = Path(tempfile.mkdtemp(prefix="drmas-sglang-"))
            else:
                self._root = self._given / f"sglang-{uuid.uuid4().hex[:8]}"
                # the server's output may hold prompts, which are nobody else's business
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
            server = self.server
            # forgotten before it is stopped: stopping may fail, and nobody may use it any more
            self.server = None
            self.memory = MemoryOccupation(self.release, measured=self._on_our_gpu)
            server.stop(self.settings.stop_timeout)

    def register(self, session: object) -> None:
        """Count a session among those that the server is there for."""
        self._sessions.add(session)

    def mark_awake(self, session: object) -> None:
        """Note that a session needs the server's memory."""
        with self.lock:
            self._awake.add(session)

    def release_memory(self, session: object, device: torch.device) -> None:
        """Note that a session sleeps; with the last one the server releases what is configured.

        Args:
            session: The session.
            device: The trainer's device.

        Raises:
            EngineError: Memory was not released, or the server is gone.
        """
        with self.lock:
            self._awake.discard(session)
            if self.server is not None and not self._awake:
                self.memory.sleep(self.server.client, device)

    def unregister(self, session: object) -> None:
        """Count a session no longer; with the last one the server ends and what was written is removed, except logs in a given folder."""
        with self.lock:
            self._awake.discard(session)
            self._sessions.discard(session)
            if self._sessions:
                return
            self.drop()
            if self._root is not None and self._given is None:
                shutil.rmtree(self._root, ignore_errors=True)
                self._root = None


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a GPU, whoever uses the rest; None for the CPU, where nothing is released."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def check_released(before: int | None, after: int | None) -> int:
    """Return how many bytes a release has freed.

    Args:
        before: Free bytes before it; None when it cannot be measured.
        after: Free bytes after it.

    Raises:
        EngineError: Nothing was freed.

    >>> check_released(1 << 30, 5 << 30) >> 30
    4
    >>> check_released(None, None)
    0
    """
    if before is None or after is None:
        return 0
    if after <= before:
        raise EngineError(
            f"the server says that it released its memory, but free memory went from {before >> 20} MiB to {after >> 20} MiB; if it is not "
            "on the trainer's GPU set engine.release=nothing, else start it with --enable-memory-saver"
        )
    return after - before
