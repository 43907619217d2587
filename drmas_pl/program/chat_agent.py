"""The role that a program talks to: chat messages in, any text out.

Place in the data flow: the program's messages are the agent's observation, and go through the model's own chat template as they are, with
the tools that the program offers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from drmas_pl.agent import Agent
from drmas_pl.chat import ChatMessage, render_chat, shows_tools
from drmas_pl.parsing import FinishReason, Grammar, Parsed, visible
from drmas_pl.program.tool_calls import in_words
from drmas_pl.prompts import Template, Tokenizer
from drmas_pl.types import Message, Observation

# kind of the messages of an observation that are turns of a chat; their author is the role
CHAT: Final = "chat"
# kind of those that call tools, or say what one returned, whose text is the message as JSON
TOOLS: Final = "tools"


@dataclass(frozen=True, slots=True)
class ChatObservation(Observation):
    """A chat that an agent is to go on with.

    Attributes:
        tools: Tools that it may call, in the form of the OpenAI API, as JSON; empty for none.
    """

    tools: str = ""


@dataclass(frozen=True, slots=True)
class ChatTemplate(Template):
    """Takes every message of an observation for a turn of a chat whose author is the role: ``system``, ``user``, ``assistant`` or ``tool``.

    A conversation that exceeds the prompt budget loses its oldest messages first. Where the chat template of the model shows no tools, they
    are described in words. With ``chat=False`` the contents are joined, and ``user`` is what the response goes on from.

    >>> from drmas_pl.types import Message
    >>> ChatTemplate("", chat=False).text(Observation("", (Message("user", "chat", "Why?"),)))
    'Why?'
    """

    def _messages(self, observation: Observation, insert: Callable[[str], str]) -> list[ChatMessage]:
        """Return the messages as they are, after one that holds the tools if there are any."""
        found = [_as_chat(message, insert) for message in observation.history]
        if isinstance(observation, ChatObservation) and observation.tools:
            return [{"role": TOOLS, "content": "", TOOLS: json.loads(observation.tools)}, *found]
        return found

    def _joined(self, messages: list[ChatMessage], tokenizer: Tokenizer | None) -> str:
        tools: list[Any] = []
        if messages and messages[0]["role"] == TOOLS:
            tools = messages[0][TOOLS]
            messages = messages[1:]
        special = bool(tools) or any(len(message) > 2 for message in messages)
        if special and not (self.chat and shows_tools(tokenizer, self.chat_options)):
            messages = in_words(messages, tools)
            tools = []
        if not self.chat:
            return "\n".join(message["content"] for message in messages) + self.user
        return render_chat(tokenizer, messages, self.chat_options, tools=tools)


def _as_chat(message: Message, insert: Callable[[str], str]) -> ChatMessage:
    if message.kind != TOOLS:
        return {"role": message.author, "content": insert(message.text)}
    found: ChatMessage = json.loads(message.text)
    for call in found.get("tool_calls", ()):
        call["function"]["arguments"] = _inserted(call["function"]["arguments"], insert)
    return {**found, "content": insert(found["content"])}


def _inserted(value: Any, insert: Callable[[str], str]) -> Any:
    """Insert every text of a call's arguments; one that JSON would write otherwise stays as it is."""
    if isinstance(value, str):
        return insert(value) if json.dumps(value, ensure_ascii=False) == f'"{value}"' else value
    if isinstance(value, dict):
        return {key: _inserted(inner, insert) for key, inner in value.items()}
    return [_inserted(inner, insert) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class ChatGrammar:
    """Accept any text that ended by itself; one that was cut off is truncated, and still the program's to read.

    Args:
        think_opened: The chat template already opened ``<think>`` inside the prompt.

    >>> ChatGrammar().parse("<think>hm</think> Yes. ").action
    'Yes.'
    """

    think_opened: bool = field(default=False, kw_only=True)

    def parse(self, text: str, finish_reason: FinishReason = "stop") -> Parsed:
        """Return what stands outside of think parts."""
        shown = visible(text, think_opened=self.think_opened)
        if finish_reason != "stop":
            return Parsed("truncated", action=shown, reason="cut before its end")
        return Parsed("valid", action=shown)


class ChatAgent(Agent):
    """Answers chat messages with any text."""

    grammar: ClassVar[Grammar] = ChatGrammar()
    template_class: ClassVar[type[Template]] = ChatTemplate
    templates = {"full": ChatTemplate(""), "compact": ChatTemplate("", chat=False)}
