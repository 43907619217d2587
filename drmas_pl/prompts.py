"""Prompt templates: from an observation to token ids, within a budget that is never exceeded silently.

Substitution is one pass over the template, so braces in task text are just text. A template with ``chat=True`` goes through the
tokenizer's chat template; one with ``chat=False`` is a raw prompt for small models without one. What an observation brings is data: control
tokens that stand in it reach the model as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from drmas_pl.chat import ChatMessage, probe_template, render_chat
from drmas_pl.errors import BatchError
from drmas_pl.tokens import control_tokens, fill, mark
from drmas_pl.types import Message, Observation

Overflow = Literal["newest", "both_ends"]
_FIELD = re.compile(r"\{(\w+)\}")


class Tokenizer(Protocol):
    """The part of a Transformers tokenizer that prompts need."""

    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any: ...


class PromptOverflow(BatchError):
    """A question does not fit the prompt budget even without any history."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a rendered prompt and whether anything was left out of it."""

    ids: tuple[int, ...]
    truncated: bool


def substitute(template: str, values: Mapping[str, str]) -> str:
    """Replace each ``{name}`` in ``template`` once; inserted text is never scanned again.

    Raises:
        ValueError: The template names a field that ``values`` lacks.

    >>> substitute("Q: {question}", {"question": "what is {x}?"})
    'Q: what is {x}?'
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            raise ValueError(f"template field {{{name}}} is unknown; use one of {sorted(values)}")
        return values[name]

    return _FIELD.sub(value, template)


@dataclass(frozen=True, slots=True)
class Template:
    """A role's prompt.

    Attributes:
        user: Text with the fields ``{question}``, ``{history}``, ``{turn}`` (from 1) and ``{turns_left}``.
        system: Same fields; empty for none.
        formats: Format per kind of message with the fields ``{author}``, ``{text}`` and ``{number}`` (from 1 within its kind).
            Kinds that are not listed are not shown to this role.
        no_history: Text that stands for an empty history.
        separator: Text between messages.
        chat: Whether the prompt goes through the tokenizer's chat template.
        chat_options: Further arguments of ``apply_chat_template``, such as ``enable_thinking``.
    """

    user: str
    system: str = ""
    formats: Mapping[str, str] = field(default_factory=dict)
    no_history: str = ""
    separator: str = "\n"
    chat: bool = True
    chat_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {name: "" for name in ("question", "history", "turn", "turns_left")}
        substitute(self.user, known)
        substitute(self.system, known)
        for text in self.formats.values():
            substitute(text, {name: "" for name in ("author", "text", "number")})

    def messages(self, observation: Observation) -> list[ChatMessage]:
        """Return the chat messages for ``observation``."""
        return self._messages(observation, lambda value: value)

    def text(self, observation: Observation, tokenizer: Tokenizer | None = None) -> str:
        """Return the prompt as text; needs ``tokenizer`` when the template is a chat."""
        return self._joined(self.messages(observation), tokenizer)

    def opens_think(self, tokenizer: Tokenizer) -> bool:
        """Tell whether responses begin inside a think part, which the prompt has opened.

        Raises:
            ConfigError: The template is a chat, and the tokenizer's chat template cannot render it.
        """
        if self.chat:
            return probe_template(tokenizer, self.chat_options).opens_think
        return self.user.rstrip().endswith("<think>")

    def render(
        self,
        observation: Observation,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        overflow: Overflow = "newest",
    ) -> Prompt:
        """Render to at most ``max_tokens`` ids.

        Args:
            observation: What the agent may see.
            tokenizer: Tokenizer of the agent's model.
            max_tokens: Prompt budget, in tokens.
            overflow: ``newest`` drops the oldest messages first; ``both_ends`` cuts tokens out of the middle.

        Raises:
            PromptOverflow: ``newest`` and the question alone exceeds the budget.
        """
        ids = self._encode(observation, tokenizer)
        if len(ids) <= max_tokens:
            return Prompt(tuple(ids), truncated=False)
        if overflow == "both_ends":
            head = max_tokens // 2
            return Prompt(tuple(ids[:head] + ids[len(ids) - (max_tokens - head) :]), truncated=True)
        for first in range(1, len(observation.history) + 1):
            ids = self._encode(replace(observation, history=observation.history[first:]), tokenizer)
            if len(ids) <= max_tokens:
                return Prompt(tuple(ids), truncated=True)
        raise PromptOverflow(
            f"the question alone takes {len(ids)} tokens but max_prompt_tokens is {max_tokens}; raise it or drop overlong tasks"
        )

    def _encode(self, observation: Observation, tokenizer: Tokenizer) -> list[int]:
        """Encode the prompt with what the observation brings as text, whatever stands in it."""
        values: list[str] = []
        placed = self._messages(observation, lambda value: mark(value, values))
        filled = _filled(placed, values)
        control = control_tokens(tokenizer)
        ids = control.encode(
            tokenizer,
            self._joined(filled, tokenizer),
            frame=lambda: self._joined(placed, tokenizer),
            key=(self.chat, repr(self.chat_options), repr(placed)),
            values=values,
        )
        start = [] if self.chat else control.start(tokenizer)
        return ids if ids[: len(start)] == start else [*start, *ids]

    def _joined(self, messages: list[ChatMessage], tokenizer: Tokenizer | None) -> str:
        if not self.chat:
            return "\n".join(message["content"] for message in messages)
        return render_chat(tokenizer, messages, self.chat_options)

    def _messages(self, observation: Observation, insert: Callable[[str], str]) -> list[ChatMessage]:
        """Return the messages, with ``insert`` of everything that the observation brings."""
        values = {
            "question": insert(observation.question),
            "history": self._history(observation.history, insert) or self.no_history,
            "turn": str(observation.turn + 1),
            "turns_left": "" if observation.turns_left is None else str(observation.turns_left),
        }
        user = {"role": "user", "content": substitute(self.user, values)}
        return (
            [{"role": "system", "content": substitute(self.system, values)}, user] if self.system else [user]
        )

    def _history(self, history: tuple[Message, ...], insert: Callable[[str], str]) -> str:
        counts: dict[str, int] = {}
        parts = []
        for message in history:
            if message.kind in self.formats:
                counts[message.kind] = counts.get(message.kind, 0) + 1
                values = {
                    "author": insert(message.author),
                    "text": insert(message.text),
                    "number": str(counts[message.kind]),
                }
                parts.append(substitute(self.formats[message.kind], values))
        return self.separator.join(parts)


def _filled(value: Any, values: list[str]) -> Any:
    """Put values into their places in every text of a message, however deep it lies."""
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, Mapping):
        return {key: _filled(inner, values) for key, inner in value.items()}
    return [_filled(inner, values) for inner in value] if isinstance(value, list) else value


def transcript(cue: str, formats: Mapping[str, str]) -> Template:
    r"""Return a raw prompt for small models without a chat template: the question, what happened so far, and ``cue``.

    Args:
        cue: Text that the response goes on from.
        formats: Format of each kind of message, the separator behind it included.

    >>> transcript("solve: ", {"attempt": "{text}\n"}).text(Observation("1+1=", (Message("a", "attempt", "3"),)))
    '1+1=\n3\nsolve: '
    """
    return Template(f"{{question}}\n{{history}}{cue}", formats=formats, separator="", chat=False)
