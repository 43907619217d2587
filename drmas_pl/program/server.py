"""The endpoints of programs behind a socket, for child processes and for programs elsewhere.

Every trajectory has a path and a secret of its own, so that no program reaches the agents of another.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from drmas_pl.program.endpoint import Endpoint

# a long chat with tools
_LARGEST_REQUEST: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where one program finds its agents.

    Attributes:
        url: ``base_url`` of an OpenAI client.
        secret: Its ``api_key``.
    """

    url: str
    secret: str = field(repr=False)

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables from which OpenAI clients of child processes read both."""
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": self.secret}


class ProgramServer:
    """Answers requests for the endpoints that are open; runs in the programs' event loop.

    Args:
        host: Address that it listens at.
        port: Port; 0 takes a free one.
        url: How programs elsewhere reach it, such as ``http://trainer:8123``; empty says host and port.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, url: str = "") -> None:
        self.host = host
        self.port = port
        self._outside = url.rstrip("/")
        self._open: dict[str, tuple[str, Endpoint]] = {}
        self._runner: web.AppRunner | None = None
        self._changing = asyncio.Lock()

    async def open(self, endpoint: Endpoint) -> Address:
        """Let a program in, and return its address."""
        name = secrets.token_urlsafe(12)
        secret = secrets.token_urlsafe(24)
        self._open[name] = (secret, endpoint)
        async with self._changing:
            if self._runner is None:
                self._runner = await self._start()
            port = self._runner.addresses[0][1]
        return Address(f"{self._outside or f'http://{self.host}:{port}'}/{name}/v1", secret)

    async def close(self, address: Address) -> None:
        """Let a program in no longer; the socket is closed behind the last one."""
        self._open.pop(address.url.split("/")[-2], None)
        async with self._changing:
            if self._runner is not None and not self._open:
                runner = self._runner
                self._runner = None
                await runner.cleanup()

    @property
    def count(self) -> int:
        """Number of programs that may come in."""
        return len(self._open)

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        app.router.add_route("*", "/{name}/v1/{path:.*}", self._answer)
        # a client that goes away gives its call up
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, self.host, self.port).start()
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        secret, endpoint = self._open.get(request.match_info["name"], ("", None))
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if endpoint is None or not hmac.compare_digest(given.encode(), secret.encode()):
            message = "this secret opens no program at this address, or the program has ended"
            error = {"message": message, "type": "authentication_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=401)
        found = await endpoint.respond(request.path, await request.read())
        return web.Response(body=found.body, status=found.status, content_type=found.content_type)
