"""Tools in a chat: calls that a model wrote into its response, and tools in words for models whose chat template knows none.

Models write calls in a few forms, which are told apart by their markers: a JSON object inside of ``<tool_call>``, parameters in tags inside
of ``<function=…>``, a JSON list after ``[TOOL_CALLS]``, or the whole response as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from drmas_pl.chat import ChatMessage

_TAGGED: Final = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION: Final = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_LISTED: Final = "[TOOL_CALLS]"
_PYTHON: Final = "<|python_tag|>"
_INTRODUCTION: Final = (
    "You can call functions. To call one, write on a line of its own\n"
    '<tool_call>{"name": "the function", "arguments": {"parameter": "value"}}</tool_call>\n'
    "What it returns is shown to you between <tool_response> and </tool_response>. The functions are:"
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool; ``arguments`` is a JSON object as text."""

    name: str
    arguments: str


def read_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    r"""Return what a response says beside its calls of tools, and these.

    What is no whole call stays text.

    >>> read_tool_calls('Look.\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')
    ('Look.', (ToolCall(name='f', arguments='{"x": 1}'),))
    >>> read_tool_calls('[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]')[1][1].name
    'g'
    >>> read_tool_calls('{"name": "f", "parameters": {"x": 1}}')[1][0].arguments
    '{"x": 1}'
    """
    if "<tool_call>" in text:
        calls = [call for part in _TAGGED.findall(text) for call in _in_tag(part)]
        return (_TAGGED.sub("", text).strip(), tuple(calls)) if calls else (text, ())
    if "<function=" in text:
        return _FUNCTION.sub("", text).strip(), _in_tag(text)
    said, marker, rest = text.partition(_LISTED)
    if not marker:
        said, rest = "", text.strip().removeprefix(_PYTHON)
    calls = _in_json(rest)
    return (said.strip(), tuple(calls)) if calls else (text, ())


def in_words(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """Return a chat in which tools, calls and what they returned are text, for chat templates that show none of it.

    >>> call = {"function": {"name": "f", "arguments": {"x": 1}}}
    >>> in_words([{"role": "assistant", "content": "", "tool_calls": [call]}], [])
    [{'role': 'assistant', 'content': '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'}]
    """
    found = [_message_in_words(message) for message in messages]
    if not tools:
        return found
    lines = [_INTRODUCTION, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)]
    text = "\n".join(lines)
    if found and found[0]["role"] == "system":
        found[0] = {"role": "system", "content": f"{found[0]['content']}\n\n{text}"}
        return found
    return [{"role": "system", "content": text}, *found]


def _message_in_words(message: ChatMessage) -> ChatMessage:
    content = str(message["content"])
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>{content}</tool_response>"}
    calls = [
        f"<tool_call>{json.dumps(call['function'], ensure_ascii=False)}</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    return {
        "role": message["role"],
        "content": "\n".join([content, *calls] if content else calls or [content]),
    }


def _in_tag(text: str) -> tuple[ToolCall, ...]:
    functions = _FUNCTION.findall(text)
    if not functions:
        return tuple(_in_json(text))
    return tuple(
        ToolCall(name, json.dumps({key: _value(value) for key, value in _PARAMETER.findall(body)}))
        for name, body in functions
    )


def _value(text: str) -> Any:
    """Return a parameter as the number, list or truth value that it is, or as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _in_json(text: str) -> list[ToolCall]:
    """Return the calls of a text that is JSON; several objects may stand one after another, with semicolons between them."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    rest = text.strip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except ValueError:
            return []
        found += value if isinstance(value, list) else [value]
        rest = rest[end:].lstrip(" \n\t;")
    calls = [_as_call(value) for value in found]
    return [call for call in calls if call is not None] if all(calls) else []


def _as_call(value: Any) -> ToolCall | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        return ToolCall(value["name"], arguments)
    return ToolCall(value["name"], json.dumps(arguments)) if isinstance(arguments, Mapping) else None
