"""Teammates that are no agents of the run: a model behind an OpenAI-style address, or a function.

What they say is no turn, is never learnt from, and takes none of the run's engines.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from drmas_pl.errors import ConfigError, EnvironmentFault
from drmas_pl.program.chat_agent import TOOLS
from drmas_pl.program.chat_request import ChatRequest
from drmas_pl.utils.named_function import import_function
from drmas_pl.utils.validation import check_returned


class ForeignAgent(ABC):
    """Answers a chat."""

    @abstractmethod
    async def answer(self, request: ChatRequest, number: int) -> str:
        """Return a text.

        Args:
            request: What is asked.
            number: How often the same was asked in this trajectory, this time included.
        """


class ScriptedAgent(ForeignAgent):
    """Answers by a function.

    Args:
        reply: A function of the messages, a list of mappings with ``role`` and ``content``, that returns a text or a coroutine of one; or
            its name as ``package.module:function``.

    Raises:
        ConfigError: It cannot be imported.
    """

    def __init__(self, reply: str | Callable[[list[dict[str, Any]]], str | Awaitable[str]]) -> None:
        self.reply = import_function(reply, "reply") if isinstance(reply, str) else reply

    async def answer(self, request: ChatRequest, number: int) -> str:
        """Call the function."""
        found = self.reply(chat(request))
        text = await found if inspect.isawaitable(found) else found
        check_returned("what a scripted agent says", text, str, "a text")
        return str(text)


class OpenAIAgent(ForeignAgent):
    """Asks a model behind an OpenAI-style address, such as a frozen peer or a judge.

    Args:
        model: Its name there.
        base_url: The address up to ``/v1``.
        api_key_variable: Environment variable that holds the key; where it is not set, none is sent.
        sampling: Further fields of every request, such as ``{"temperature": 0}``.
        timeout: Seconds that an answer may take.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key_variable: str = "OPENAI_API_KEY",
        sampling: dict[str, Any] | None = None,
        timeout: float = 120.0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"base_url must begin with http:// or https://, such as http://127.0.0.1:8000/v1, got {base_url!r}"
            )
        self.model = model
        self.url = f"{base_url.rstrip('/')}/chat/completions"
        self.api_key_variable = api_key_variable
        self.sampling = dict(sampling or {})
        self.timeout = timeout

    async def answer(self, request: ChatRequest, number: int) -> str:
        """Send a request and return the content of the first choice.

        Raises:
            EnvironmentFault: There is no answer.
        """
        body: dict[str, Any] = {"model": self.model, "messages": chat(request), **self.sampling}
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        if request.stop:
            body["stop"] = list(request.stop)
        key = os.environ.get(self.api_key_variable, "")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limit = aiohttp.ClientTimeout(total=self.timeout)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.post(self.url, json=body, headers=headers) as response,
            ):
                response.raise_for_status()
                found = await response.json()
            return str(found["choices"][0]["message"]["content"] or "")
        except (
            aiohttp.ClientError,
            asyncio.TimeoutError,
            KeyError,
            IndexError,
            TypeError,
            ValueError,
        ) as error:
            raise EnvironmentFault(
                f"{self.url} did not answer for the model {self.model!r}: {type(error).__name__}: {error}"
            ) from error


def chat(request: ChatRequest) -> list[dict[str, Any]]:
    """Return the messages of a request in the form of the OpenAI API."""
    found = []
    for message in request.messages:
        if message.kind != TOOLS:
            found.append({"role": message.author, "content": message.text})
            continue
        whole = json.loads(message.text)
        for call in whole.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        found.append(whole)
    return found
