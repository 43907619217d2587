"""OpenAI clients whose requests are answered in this process, without a socket."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from drmas_pl.errors import ConfigError, ContractError
from drmas_pl.program.calls import in_loop, in_programs_loop
from drmas_pl.program.endpoint import Endpoint

_URL: Final = "http://program/v1"


async def open_client(endpoint: Endpoint, track: Callable[[str, Any], Any]) -> Any:
    """Return an ``openai.AsyncOpenAI`` whose requests an endpoint answers.

    Args:
        endpoint: The endpoint.
        track: Is told of every call that is made, by agent, to know those that are never awaited.

    Raises:
        ConfigError: The openai library is missing.
    """
    openai = _library()
    transport = _http(openai.DefaultAsyncHttpxClient).ASGITransport(app=endpoint)
    http = openai.DefaultAsyncHttpxClient(transport=transport, base_url=_URL)
    client = openai.AsyncOpenAI(api_key="none", base_url=_URL, http_client=http, max_retries=0)
    create = client.chat.completions.create
    client.chat.completions.create = lambda **fields: track(str(fields.get("model")), create(**fields))
    # the first request finds out about the platform in a thread, whose time must not decide which calls wait together
    await client.models.list()
    return client


def open_blocking_client(endpoint: Endpoint, is_in_order: Callable[[], bool]) -> Any:
    """Return an ``openai.OpenAI`` for a program in a thread of its own.

    Args:
        endpoint: The endpoint.
        is_in_order: Tells whether the program's own thread is what runs now.

    Raises:
        ConfigError: The openai library is missing.
    """
    openai = _library()
    http = _http(openai.DefaultHttpxClient)

    class Transport(http.BaseTransport):  # type: ignore[name-defined]
        def handle_request(self, request: Any) -> Any:
            if in_programs_loop():
                raise ContractError(
                    "a coroutine needs an AsyncOpenAI; openai.OpenAI would stop every program"
                )
            coroutine = endpoint.respond(request.url.path, request.read(), in_order=is_in_order())
            found = in_loop(coroutine).result()
            headers = {"content-type": found.content_type}
            return http.Response(found.status, headers=headers, content=found.body)

    client = openai.DefaultHttpxClient(transport=Transport(), base_url=_URL)
    return openai.OpenAI(api_key="none", base_url=_URL, http_client=client, max_retries=0)


def _library() -> Any:
    try:
        return import_module("openai")
    except ImportError as error:
        raise ConfigError(
            "an OpenAI client of a program needs the openai library; install drmas_pl[openai]"
        ) from error


def _http(client: type) -> ModuleType:
    """Return the HTTP library of a client: versions of openai use different ones, of which each has the same transports."""
    base = next(kind for kind in client.__mro__ if kind.__module__.startswith("httpx"))
    return import_module(base.__module__.partition(".")[0])
