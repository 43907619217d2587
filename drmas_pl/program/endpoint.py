"""The agents of a program behind the OpenAI API, in process: no socket, no server.

Place in the data flow: an OpenAI client sends its requests to :class:`Endpoint` over an ASGI transport; each becomes calls of the agent
that ``model`` names, as if the program had asked it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, Final

from drmas_pl.errors import ConfigError, ContractError

# fields that change nothing as long as they hold one of these values
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {"stream": (None, False), "user": ()}
_ANSWERED: Final = ("model", "messages", "n")
_MOST_CHOICES: Final = 64
_REMEDY: Final = "how an agent samples is set where it is trained, for example agents.roles.<name>.sampling"

Chat = Callable[[str, Any], Awaitable[Any]]


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Endpoint:
    """An ASGI application that answers ``/v1/chat/completions`` and ``/v1/models``.

    Args:
        names: The agents.
        chat: Asks an agent by name, and returns an answer with ``text`` and ``finish_reason``.
    """

    def __init__(self, names: tuple[str, ...], chat: Chat) -> None:
        self.names = names
        self._chat = chat
        self._count = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        body = b""
        more = True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        try:
            status = 200
            content = await self._answer(scope["path"], body)
        except _Refused as refused:
            error = {"message": str(refused), "type": "invalid_request_error", "param": None, "code": None}
            status = refused.status
            content = {"error": error}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})

    async def _answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/v1/models":
            models = [
                {"id": name, "object": "model", "created": 0, "owned_by": "drmas_pl"} for name in self.names
            ]
            return {"object": "list", "data": models}
        if path != "/v1/chat/completions":
            raise _Refused(404, f"{path} is not there; use chat.completions")
        request = json.loads(body)
        check_request(request, self.names)
        asked = [self._chat(request["model"], request.get("messages")) for _ in range(_count(request))]
        try:
            answers = await asyncio.gather(*asked)
        except ContractError as error:
            raise _Refused(400, str(error)) from error
        self._count += 1
        choices = [
            {
                "index": place,
                "message": {"role": "assistant", "content": answer.text},
                "finish_reason": answer.finish_reason,
                "logprobs": None,
            }
            for place, answer in enumerate(answers)
        ]
        return {
            "id": f"call-{self._count}",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": choices,
        }


def check_request(request: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuse what an agent cannot do.

    Raises:
        _Refused: The agent is unknown, or a field asks for something that is not done.
    """
    if request.get("model") not in names:
        raise _Refused(404, f"there is no agent {request.get('model')!r}; model must be one of {list(names)}")
    for name, value in request.items():
        if name in _ANSWERED or value is None or (name in _NEUTRAL and value in (_NEUTRAL[name] or (value,))):
            continue
        raise _Refused(400, f"{name} is not taken here, got {value!r}; leave it out, {_REMEDY}")
    count = _count(request)
    if not isinstance(count, int) or not 1 <= count <= _MOST_CHOICES:
        raise _Refused(400, f"n must be a whole number from 1 to {_MOST_CHOICES}, got {count!r}")


def _count(request: Mapping[str, Any]) -> Any:
    """Return how many answers are asked for."""
    return 1 if request.get("n") is None else request["n"]


async def open_client(endpoint: Endpoint) -> Any:
    """Return an ``openai.AsyncOpenAI`` whose requests an endpoint answers.

    Raises:
        ConfigError: The openai library is missing.
    """
    try:
        import openai
    except ImportError as error:
        raise ConfigError("agents.openai() needs the openai library; install drmas_pl[openai]") from error
    # its versions use different HTTP libraries, of which each has a transport for ASGI
    base = next(
        kind for kind in openai.DefaultAsyncHttpxClient.__mro__ if kind.__module__.startswith("httpx")
    )
    transport = import_module(base.__module__.partition(".")[0]).ASGITransport(app=endpoint)
    http = openai.DefaultAsyncHttpxClient(transport=transport, base_url="http://program/v1")
    client = openai.AsyncOpenAI(api_key="none", base_url="http://program/v1", http_client=http, max_retries=0)
    # the first request finds out about the platform in a thread, whose time must not decide which calls wait together
    await client.models.list()
    return client
