"""Chat templates: what they can do, found by trying them once, and messages in the form that they take.

Place in the data flow: a role's template writes messages; here they are brought into a form that the tokenizer's chat template renders
without losing any, and rendered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from drmas_pl.errors import ConfigError
from drmas_pl.tokens import control_tokens

# role and content; calls of tools and what they returned bring further fields
ChatMessage = dict[str, Any]
_OPEN_THINK = re.compile(r"<think>\s*\Z")
_SYSTEM = "Sys7em"
_USER = "Us3r"
_OTHER = "0ther"
_ANSWER = "Answ3r"
_THOUGHT = "Th0ught"
_PLAIN = {"role", "content"}


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a chat template does with messages.

    Attributes:
        system: It shows system turns. Where it refuses or drops them, their text is put in front of the user's.
        alternates: It refuses two turns of one role after another, or loses one. Such neighbours are merged.
        generation_prompt: Text that opens the response; empty where there is none.
        opens_think: The prompt ends in an open ``<think>``, so that the response begins inside it.
        start: Text that stands before every conversation by the tokenizer's rule for its beginning; empty where the template writes none.
        strips_think: Think parts of earlier responses are not shown.
        append_only: A longer conversation begins with the prompt and the response of the shorter one.
        end: Control token that closes a response; empty where none does.
    """

    system: bool
    alternates: bool
    generation_prompt: str
    opens_think: bool
    start: str
    strips_think: bool
    append_only: bool
    end: str


def render_chat(
    tokenizer: Any,
    messages: Sequence[ChatMessage],
    options: Mapping[str, Any] | None = None,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Render messages, and tools that the assistant may call, with the tokenizer's chat template, adapted to what it can do.

    Raises:
        ConfigError: See :func:`probe_template`.
    """
    adapted = adapt(messages, probe_template(tokenizer, options))
    return _render(tokenizer, adapted, {**(options or {}), **({"tools": list(tools)} if tools else {})})


def adapt(messages: Sequence[ChatMessage], traits: TemplateTraits) -> list[ChatMessage]:
    """Fold a system text into what follows and merge neighbours of one role where a template demands it.

    >>> traits = TemplateTraits(False, True, "", False, "", False, True, "")
    >>> adapt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}], traits)
    [{'role': 'user', 'content': 'Be brief.\\n\\nWhy?'}]
    """
    merge = traits.alternates or not traits.system
    adapted: list[ChatMessage] = []
    for message in messages:
        role = "user" if message["role"] == "system" and not traits.system else message["role"]
        if merge and adapted and adapted[-1]["role"] == role and {*message, *adapted[-1]} == _PLAIN:
            adapted[-1] = {"role": role, "content": f"{adapted[-1]['content']}\n\n{message['content']}"}
        else:
            adapted.append({**message, "role": role})
    return adapted


def shows_tools(tokenizer: Any, options: Mapping[str, Any] | None = None) -> bool:
    """Tell whether the tokenizer's chat template writes out tools, calls of them and what they returned."""
    name, answer = "pr0be", "Answ3r"
    tool = {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": {"key": _OTHER}}}
    messages: list[ChatMessage] = [
        _message("user", _USER),
        {**_message("assistant", ""), "tool_calls": [call]},
        {**_message("tool", answer), "tool_call_id": "call00001", "name": name},
    ]
    known = _TOOLS.setdefault(tokenizer, {})
    key = (str(getattr(tokenizer, "chat_template", None)), repr(sorted((options or {}).items())))
    if key not in known:
        probe = _Probe(tokenizer, options or {})
        known[key] = (
            probe.render(messages, (_USER, name, _OTHER, answer)) is not None
            and probe.render(messages[:1], (_USER, name), tools=[tool]) is not None
        )
    return known[key]


def probe_template(tokenizer: Any, options: Mapping[str, Any] | None = None) -> TemplateTraits:
    """Try the tokenizer's chat template, once for each set of options.

    Args:
        tokenizer: A Transformers tokenizer.
        options: Further arguments of ``apply_chat_template``, such as ``enable_thinking``.

    Raises:
        ConfigError: There is no chat template, or it refuses or drops a single user turn.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise ConfigError(
            f"the role's template is a chat, but the tokenizer of {_name(tokenizer)} has no chat template; "
            "choose one with chat=false, or set model.chat_template"
        )
    known = _KNOWN.setdefault(tokenizer, {})
    key = (str(template), repr(sorted((options or {}).items())))
    if key not in known:
        known[key] = _Probe(tokenizer, options or {}).traits()
    return known[key]


_TOOLS: WeakKeyDictionary[Any, dict[tuple[str, str], bool]] = WeakKeyDictionary()
_KNOWN: WeakKeyDictionary[Any, dict[tuple[str, str], TemplateTraits]] = WeakKeyDictionary()


def end_token_ids(policy: Any, tokenizer: Any) -> set[int]:
    """Return every id that ends a response, for sampling and decoding alike.

    These are the tokenizer's end token, all of the model's generation config, and what the chat template closes a response with.
    """
    configured = getattr(getattr(policy, "generation_config", None), "eos_token_id", None)
    several = configured if isinstance(configured, (list, tuple)) else [configured]
    turn = getattr(tokenizer, "eot_token_id", None)
    found = {int(token) for token in (tokenizer.eos_token_id, turn, *several) if token is not None}
    if getattr(tokenizer, "chat_template", None):
        end = _Probe(tokenizer, {}).end()
        found |= {control_tokens(tokenizer).ids[end]} if end else set()
    return found


def closing_id(tokenizer: Any, *, chat: bool) -> int:
    """Return the id that closes a written response: in a chat what its template puts there, otherwise the tokenizer's end token."""
    end = probe_template(tokenizer).end if chat else ""
    return control_tokens(tokenizer).ids[end] if end else int(tokenizer.eos_token_id)


class _Probe:
    """Renders small conversations and looks at what comes out."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.error = ""

    def traits(self) -> TemplateTraits:
        """Find everything out."""
        first = self.shown((_USER,))
        if first is None:
            raise ConfigError(
                f"the chat template of {_name(self.tokenizer)} does not take a single user turn"
                f"{f' ({self.error})' if self.error else ''}; repair its chat_template, or choose a prompt template with chat=false"
            )
        opened = bool(_OPEN_THINK.search(first))
        answer = f"{_THOUGHT}</think>{_ANSWER}" if opened else _ANSWER
        longer = self.shown(
            (_USER, f"<think>{answer}" if opened else answer, _OTHER), visible=(_USER, _ANSWER, _OTHER)
        )
        thoughtful = self.shown(
            (_USER, f"<think>{_THOUGHT}</think>{_ANSWER}", _OTHER), visible=(_USER, _ANSWER, _OTHER)
        )
        start = str(getattr(self.tokenizer, "bos_token", None) or "")
        return TemplateTraits(
            system=self.system(),
            alternates=self.render([_message("user", _USER), _message("user", _OTHER)], (_USER, _OTHER))
            is None,
            generation_prompt=self.generation_prompt(first),
            opens_think=opened,
            start=start if start and first.startswith(start) else "",
            strips_think=thoughtful is not None and _THOUGHT not in thoughtful,
            append_only=longer is not None and longer.startswith(first + answer),
            end=self.end(),
        )

    def system(self) -> bool:
        """Tell whether a system turn is shown, and not as if the assistant had said it."""
        texts = [
            self.render([_message(role, _SYSTEM), _message("user", _USER)], (_SYSTEM, _USER))
            for role in ("system", "assistant")
        ]
        return texts[0] is not None and texts[0] != texts[1]

    def end(self) -> str:
        """Find the control token that closes a response, before anything else stands there."""
        text = self.shown((_USER, _ANSWER), visible=(_USER, _ANSWER), add_generation_prompt=False)
        rest = "" if text is None else text.rpartition(_ANSWER)[2].lstrip()
        ends = [token for token in control_tokens(self.tokenizer).ids if rest.startswith(token)]
        return max(ends, key=len, default="")

    def generation_prompt(self, first: str) -> str:
        """Return by how much a prompt is longer for asking for a response."""
        bare = self.shown((_USER,), add_generation_prompt=False)
        return first.removeprefix(bare) if bare is not None and first.startswith(bare) else ""

    def shown(
        self, contents: Sequence[str], visible: Sequence[str] | None = None, **options: Any
    ) -> str | None:
        """Render turns of user and assistant in turn; None when that fails or one of the ``visible`` texts is lost."""
        roles = ("user", "assistant", "user")
        messages = [_message(role, content) for role, content in zip(roles, contents)]
        return self.render(messages, contents if visible is None else visible, **options)

    def render(self, messages: Sequence[ChatMessage], visible: Sequence[str], **options: Any) -> str | None:
        """Render messages; None when that fails or one of the ``visible`` texts is lost."""
        try:
            text = _render(self.tokenizer, messages, {**self.options, **options})
        except Exception as error:  # chat templates raise whatever their Jinja source says
            self.error = (str(error).strip() or type(error).__name__).splitlines()[0]
            return None
        return text if all(part in text for part in visible) else None


def _message(role: str, content: str) -> ChatMessage:
    return {"role": role, "content": content}


def _render(tokenizer: Any, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> str:
    chosen = {"add_generation_prompt": True, **options, "tokenize": False}
    return str(tokenizer.apply_chat_template(list(messages), **chosen))


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or "the model")
