"""The role that a program talks to: chat messages in, any text out.

Place in the data flow: the program's messages are the agent's observation, and go through the model's own chat template as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from drmas_pl.agent import Agent
from drmas_pl.chat import ChatMessage
from drmas_pl.parsing import FinishReason, Grammar, Parsed, visible
from drmas_pl.prompts import Template
from drmas_pl.types import Observation

# kind of the messages of an observation that are turns of a chat; their author is the role
CHAT = "chat"


@dataclass(frozen=True, slots=True)
class ChatTemplate(Template):
    """Takes every message of an observation for a turn of a chat whose author is the role: ``system``, ``user`` or ``assistant``.

    A conversation that exceeds the prompt budget loses its oldest messages first.

    >>> from drmas_pl.types import Message
    >>> ChatTemplate("", chat=False).text(Observation("", (Message("user", "chat", "Why?"),)))
    'Why?'
    """

    def _messages(self, observation: Observation, insert: Callable[[str], str]) -> list[ChatMessage]:
        """Return the messages as they are."""
        return [{"role": message.author, "content": insert(message.text)} for message in observation.history]


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
    templates = {"full": ChatTemplate(""), "compact": ChatTemplate("", chat=False)}
