"""One running server, started by us or found at an address."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from drmas_pl.engines.sglang.client import Client, RequestRefused, RequestTimeout, ServerLost
from drmas_pl.engines.sglang.process import LAUNCHER, ServerProcess, reserved_port
from drmas_pl.engines.sglang.settings import (
    DEVICE_ENVIRONMENT,
    INFO_PATHS,
    Device,
    ServerApi,
    ServerSettings,
    launch_flags,
)
from drmas_pl.errors import EngineError

log = logging.getLogger(__name__)
POLL_SECONDS = 0.25
# where the launcher looks for what the command line must not show
KEY_VARIABLE = "DRMAS_SERVER_KEY"
NAME_VARIABLE = "DRMAS_SERVER_NAME"
# where the user puts the key of a server that runs already
RUNNING_KEY_VARIABLE = "DRMAS_ENGINE_KEY"


class Server:
    """A server that answers.

    Args:
        client: Speaks to it.
        process: Its process if it is ours.
        start_timeout: Seconds within which it must answer.
        name: Name that a server of ours was given and nobody else knows.

    Raises:
        EngineError: It does not answer in time, ended, is too old, or is somebody else's.
    """

    def __init__(
        self,
        client: Client,
        *,
        process: ServerProcess | None,
        start_timeout: float,
        name: str | None = None,
    ) -> None:
        self.client = client
        self.process = process
        self._await_health(start_timeout)
        if name is not None:
            self._check_locked()
        self.info = self._read_info()
        if name is not None and self.info.get("served_model_name") != name:
            raise self._foreign("it has another name")
        self.api = ServerApi.of(str(self.info.get("version")))
        if process is not None:
            client.watch(lambda: process.exit_code is None)

    @property
    def alive(self) -> bool:
        """Whether the process runs; an address counts as alive until a request shows otherwise."""
        return self.process is None or self.process.exit_code is None

    @property
    def data_parallel(self) -> int:
        """Number of copies of the weights."""
        return int(self.info.get("dp_size") or 1)

    @property
    def tensor_parallel(self) -> int:
        """Number of GPUs that share a copy of the weights."""
        return int(self.info.get("tp_size") or 1)

    @property
    def context_length(self) -> int | None:
        """Largest number of prompt plus response tokens at which the server neither refuses nor shortens; None when it does not tell."""
        # a prompt must be shorter than this, and a few tokens beyond it are there for the response
        limit = self.info.get("max_req_input_len")
        return None if limit is None else int(limit)

    def exit_report(self) -> str:
        """Say how the server ended and where its output is."""
        if self.process is None:
            return f"the server at {self.client.url} is not ours, so look at its own output"
        return f"its exit code is {self.process.exit_code}, its output is in {self.process.log_file}"

    def log_tail(self) -> str:
        """Return :meth:`exit_report` and the end of the output."""
        if self.process is None:
            return self.exit_report()
        return f"{self.exit_report()}, which ends with:\n{self.process.tail()}"

    def stop(self, timeout: float) -> None:
        """Close the connections and, if the server is ours, end it."""
        self.client.close()
        if self.process is not None:
            self.process.stop(timeout)

    def _await_health(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            if not self.alive:
                raise EngineError(f"the server ended while it started; {self.log_tail()}")
            try:
                self.client.get("/health", timeout=30.0, with_key=False)
                return
            except (ServerLost, RequestRefused, RequestTimeout) as error:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"the server at {self.client.url} did not answer within {timeout:g} s ({error}); raise engine.server.start_timeout "
                        f"if it only needs longer; {self.log_tail()}"
                    ) from error
            time.sleep(POLL_SECONDS)

    def _check_locked(self) -> None:
        """Make sure that the server answers nobody without the key, before it is shown the key."""
        try:
            self.client.get(INFO_PATHS[0], with_key=False)
        except RequestRefused as error:
            if error.status in (401, 403):
                return
        raise self._foreign("it answers without the key")

    def _foreign(self, reason: str) -> EngineError:
        return EngineError(
            f"the server at {self.client.url} is not the one that was started there: {reason}; leave engine.server.port out, or "
            f"choose a port that nobody listens on; {self.log_tail()}"
        )

    def _read_info(self) -> Mapping[str, Any]:
        for path in INFO_PATHS:
            try:
                answer = self.client.get(path)
            except RequestRefused as error:
                if error.status != 404:
                    raise
                continue
            if isinstance(answer, dict):
                return answer
        raise EngineError(f"{self.client.url} answers none of {list(INFO_PATHS)}; it is no sglang server")


def launch(
    python: str,
    settings: ServerSettings,
    *,
    model: Path,
    device: Device,
    dtype: str,
    memory_saver: bool,
    devices: Sequence[str] = (),
    version: int,
    log_file: Path,
    client: Mapping[str, Any],
) -> Server:
    """Start a server and wait until it answers.

    Args:
        python: Interpreter of sglang's environment.
        settings: How to start it.
        model: Folder with the weights to start from.
        device: Where it computes.
        dtype: Data type of its weights.
        memory_saver: Whether memory is released while others train.
        devices: GPUs that it may use; none given leaves that to the environment.
        version: Version of the weights in ``model``.
        log_file: Takes its output.
        client: Further arguments of :class:`Client`.

    Raises:
        EngineError: It ended or did not answer in time; the end of its output is in the message.
    """
    own = {name.replace("-", "_"): value for name, value in settings.arguments.items()}
    key = str(own.get("api_key") or secrets.token_urlsafe(32))
    name = str(own.get("served_model_name") or f"drmas-{secrets.token_hex(16)}")
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
    environment = {
        **visible,
        **DEVICE_ENVIRONMENT[device],
        **{variable: str(value) for variable, value in settings.environment.items()},
        **({} if "api_key" in own else {KEY_VARIABLE: key}),
        **({} if "served_model_name" in own else {NAME_VARIABLE: name}),
    }
    started = time.monotonic()
    with nullcontext(settings.port) if settings.port else reserved_port(settings.host) as port:
        flags = launch_flags(
            settings,
            model=model,
            device=device,
            dtype=dtype,
            port=port,
            memory_saver=memory_saver,
            version=version,
        )
        process = ServerProcess([python, str(LAUNCHER), *flags], log_file=log_file, environment=environment)
        http = Client(f"http://{settings.host}:{port}", key=key, **client)
        try:
            server = Server(http, process=process, start_timeout=settings.start_timeout, name=name)
        except BaseException:
            # Ctrl-C while it starts must not leave it behind
            http.close()
            process.stop(settings.stop_timeout)
            raise
    log.info(
        "sglang %s answers at %s after %.0f s",
        server.info.get("version"),
        http.url,
        time.monotonic() - started,
    )
    return server


def attach(url: str, *, start_timeout: float, client: Mapping[str, Any]) -> Server:
    """Connect to a running server; its key, if it has one, is in the variable ``DRMAS_ENGINE_KEY``.

    Args:
        url: Its address.
        start_timeout: Seconds within which it must answer.
        client: Further arguments of :class:`Client`.

    Raises:
        EngineError: It does not answer in time or is no sglang server.
    """
    http = Client(url, key=os.environ.get(RUNNING_KEY_VARIABLE), **client)
    try:
        return Server(http, process=None, start_timeout=start_timeout)
    except BaseException:
        http.close()
        raise
