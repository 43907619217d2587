"""Requests of the OpenAI API, read: what an agent honours, and what it refuses by name.

Place in the data flow: :class:`~drmas_pl.program.endpoint.Endpoint` reads a request here and asks the program's execution for answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from drmas_pl.errors import ContractError
from drmas_pl.program.chat_agent import CHAT, TOOLS
from drmas_pl.types import Message, SamplingParams
from drmas_pl.utils.validation import shown

ROLES: Final = ("system", "user", "assistant", "tool")
_MOST_CHOICES: Final = 64
_REMEDY: Final = "how an agent samples is set where it is trained, for example agents.roles.<name>.sampling"
# fields that change nothing about an answer, whatever they hold
_NEUTRAL: Final = ("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier")
# fields that ask for nothing as long as they hold one of these values
_WITHOUT_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}
_READ: Final = (
    *("model", "messages", "n", "stop", "max_tokens", "max_completion_tokens", "seed", "tools", "stream"),
    *("stream_options", "logprobs", "parallel_tool_calls"),
)


class RequestRefused(ContractError):
    """A request that is answered with an error of its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What is asked of an agent.

    Attributes:
        messages: The chat.
        tools: Tools that may be called, as JSON; empty for none.
        stop: Texts that end the answer.
        max_tokens: Largest number of tokens; None leaves it to the agent.
        seed: Part of the seed of the sample, if it is given.
        count: Number of answers.
        stream: Whether the answer is to come in parts.
        usage: Whether the last part is to count tokens.
        logprobs: Whether the answer is to list its tokens and their log-probabilities.
        several_tools: Whether an answer may call several tools.
    """

    messages: tuple[Message, ...]
    tools: str = ""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    seed: int | None = None
    count: int = 1
    stream: bool = False
    usage: bool = False
    logprobs: bool = False
    several_tools: bool = True

    @property
    def digest(self) -> str:
        """Hash of all that decides what is sampled."""
        chat = [(message.author, message.kind, message.text) for message in self.messages]
        said = json.dumps([chat, self.tools, self.stop, self.max_tokens, self.seed])
        return hashlib.blake2b(said.encode(), digest_size=12).hexdigest()


def read_request(body: Mapping[str, Any], sampling: SamplingParams | None) -> ChatRequest:
    """Read the fields of a request.

    Args:
        body: Its fields.
        sampling: How the agent samples; None where it is not known.

    Raises:
        RequestRefused: A field asks for something that is not done.
    """
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in _READ or name in _NEUTRAL or value in _WITHOUT_EFFECT.get(name, ()):
            continue
        if sampling is not None and name in ("temperature", "top_p") and value == getattr(sampling, name):
            continue
        raise RequestRefused(400, _refusal(name, value, sampling))
    tools = given.get("tools") if given.get("tool_choice") != "none" else None
    limit = given.get("max_completion_tokens", given.get("max_tokens"))
    return ChatRequest(
        read_messages(given.get("messages")),
        tools=json.dumps([_tool(tool) for tool in _list_of("tools", tools)]) if tools else "",
        stop=_stop(given.get("stop", ())),
        max_tokens=None if limit is None else _whole("max_tokens", limit, 1, None),
        seed=None if "seed" not in given else _whole("seed", given["seed"], None, None),
        count=_whole("n", given.get("n", 1), 1, _MOST_CHOICES),
        stream=bool(given.get("stream", False)),
        usage=bool((given.get("stream_options") or {}).get("include_usage", False)),
        logprobs=bool(given.get("logprobs", False)),
        several_tools=bool(given.get("parallel_tool_calls", True)),
    )


def read_messages(messages: Any) -> tuple[Message, ...]:
    """Return a chat as messages whose author is the role.

    Raises:
        RequestRefused: It is no chat.
    """
    found = tuple(_message(message) for message in _list_of("messages", messages))
    if not found:
        raise RequestRefused(400, "chat needs at least one message, got none")
    return found


def _refusal(name: str, value: Any, sampling: SamplingParams | None) -> str:
    if name in ("temperature", "top_p") and sampling is not None:
        return (
            f"{name}={value!r} is not how this agent samples and learns, which is {getattr(sampling, name)}; leave it out, or set "
            f"agents.roles.<name>.sampling.{name}"
        )
    return f"{name} is not taken here, got {shown(value)}; leave it out, {_REMEDY}"


def _message(message: Any) -> Message:
    given = message if isinstance(message, Mapping) else {}
    role = "system" if given.get("role") == "developer" else given.get("role")
    content = _text(given.get("content"))
    calls = given.get("tool_calls") or ()
    if role not in ROLES or not (isinstance(content, str) or (content is None and calls)):
        raise RequestRefused(
            400,
            f"a message must have a role out of {', '.join(ROLES)} and a text as content, got {shown(message)}",
        )
    if not calls and role != "tool":
        return Message(role, CHAT, str(content))
    whole = {"role": role, "content": content or ""}
    if calls:
        whole["tool_calls"] = [_call(call) for call in _list_of("tool_calls", calls)]
    whole |= {name: given[name] for name in ("tool_call_id", "name") if given.get(name)}
    return Message(role, TOOLS, json.dumps(whole, ensure_ascii=False))


def _text(content: Any) -> Any:
    """Return the text of a message whose content is given in parts; anything else as it is."""
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        return "".join(str(part.get("text", "")) for part in parts)
    return content


def _call(call: Any) -> dict[str, Any]:
    """Return a call whose arguments are an object, as chat templates take them."""
    try:
        function = call["function"]
        arguments = function["arguments"]
        name = str(function["name"])
    except (KeyError, TypeError) as error:
        raise RequestRefused(
            400, f"a tool call must have a function with name and arguments, got {shown(call)}"
        ) from error
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        arguments = {"text": arguments}
    return {"id": call.get("id", ""), "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestRefused(400, f"a tool must be a function with a name, got {shown(tool)}")
    kept = {key: function[key] for key in ("name", "description", "parameters") if key in function}
    return {"type": "function", "function": kept}


def _stop(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise RequestRefused(400, f"stop must be a text or several, none of them empty, got {shown(value)}")
    return texts


def _list_of(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise RequestRefused(400, f"{name} must be a list, got {shown(value)}")
    return list(value)


def _whole(name: str, value: Any, low: int | None, high: int | None) -> int:
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or (low is not None and value < low) or (high is not None and value > high):
        bounds = f" from {low} to {high}" if high is not None else f" of at least {low}" if low else ""
        raise RequestRefused(400, f"{name} must be a whole number{bounds}, got {value!r}")
    return int(value)
