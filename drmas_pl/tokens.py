"""Control tokens of a tokenizer, the encoding that keeps text that is data from becoming them, and exact decoding.

Place in the data flow: a prompt is a *frame*, which the role's and the chat template write, with *values* in it: questions, passages,
tool results, teammates' words. The frame's markers become control tokens; the same strings inside a value stay text.

Control tokens are those that the tokenizer calls special, those in the form ``<|…|>``, and markers such as ``<think>`` or
``<tool_call>`` that are single tokens and that the chat template writes. Every other added token, such as a tag that a model was
taught as one token, is a word like any other.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from drmas_pl.errors import BatchError

_MARKER = re.compile(r"[<\[]\S+[>\]]")
_PIPED = re.compile(r"<[|｜].+[|｜]>")
# of the private use area, so that no template trims, escapes or splits them
_PLACE = re.compile("\ue0f0([0-9]+)\ue0f1")
_FRAMES_KEPT = 4096


def mark(value: str, values: list[str]) -> str:
    """Add ``value`` to ``values`` and return the place that stands for it in a frame.

    White space around it stays outside, since templates trim messages.

    >>> values = []
    >>> frame = f"Q:{mark(' why? ', values)}"
    >>> values, fill(frame, values)
    (['why?'], 'Q: why? ')
    """
    core = value.strip()
    if not core:
        return value
    values.append(core)
    start = value.index(core)
    return f"{value[:start]}\ue0f0{len(values) - 1}\ue0f1{value[start + len(core) :]}"


def fill(frame: str, values: Sequence[str]) -> str:
    """Put the values into their places, in one pass, so that a value that looks like a place stays as it is."""
    return _PLACE.sub(lambda place: _value(place, values), frame)


def _value(place: re.Match[str], values: Sequence[str]) -> str:
    index = int(place[1])
    return values[index] if index < len(values) else place[0]


class ControlTokens:
    """The control tokens of one tokenizer.

    Attributes:
        ids: Id by text.

    Args:
        tokenizer: A Transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.ids = _control_ids(tokenizer)
        self._set = frozenset(self.ids.values())
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._frames: dict[Any, list[int]] = {}
        self._apart: _Apart | None = None
        self._start: list[int] | None = None

    def encode(
        self, tokenizer: Any, text: str, *, frame: Callable[[], str], key: Any, values: Sequence[str]
    ) -> list[int]:
        """Encode a prompt so that no part of a value becomes a control token.

        A prompt whose control tokens are those of its frame is encoded as it stands. Any other is put together again with stand-ins for
        the frame's control tokens, by a tokenizer that knows the stand-ins alone.

        Args:
            tokenizer: The tokenizer.
            text: The prompt.
            frame: Renders the prompt with places instead of values.
            key: What the frame depends on.
            values: What belongs into the places.

        Raises:
            BatchError: A value holds a control token and the tokenizer cannot be told to read it as text.
        """
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        if not self.ids or self._found(ids) == self._expected(tokenizer, frame, key):
            return ids
        if self._apart is None:
            self._apart = _Apart(tokenizer, self.ids)
        apart = self._apart
        return apart.encode(fill(self._pattern.sub(lambda token: apart.stand_ins[token[0]], frame()), values))

    def start(self, tokenizer: Any) -> list[int]:
        """Return what the tokenizer puts in front of every text by default: usually nothing, or a token for its beginning."""
        if self._start is None:
            bare = tokenizer.encode("x", add_special_tokens=False)
            whole = tokenizer.encode("x", add_special_tokens=True)
            found = [at for at in range(len(whole)) if whole[at : at + len(bare)] == bare]
            self._start = whole[: found[0]] if found else []
        return self._start

    def _found(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token in self._set]

    def _expected(self, tokenizer: Any, frame: Callable[[], str], key: Any) -> list[int]:
        """Return the control tokens of a frame; few frames differ, so that they are kept."""
        if key not in self._frames:
            if len(self._frames) >= _FRAMES_KEPT:
                self._frames.clear()
            self._frames[key] = self._found(tokenizer.encode(frame(), add_special_tokens=False))
        return self._frames[key]


class _Apart:
    """A copy of a tokenizer in which control tokens have other texts, which nobody can guess."""

    def __init__(self, tokenizer: Any, ids: Mapping[str, int]) -> None:
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise BatchError(
                f"a question, passage or utterance holds a control token of the model, one of {sorted(ids)[:4]}, and "
                f"{type(tokenizer).__name__} cannot read it as text; use a tokenizer with a tokenizer.json, or clean the data"
            )
        nonce = secrets.token_hex(8)
        self.stand_ins = {text: f"\ufdd0{nonce}-{token}\ufdd1" for text, token in ids.items()}
        self._tokenizer = Tokenizer.from_str(
            json.dumps(_renamed(json.loads(backend.to_str()), self.stand_ins))
        )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._ids = {self._tokenizer.token_to_id(self.stand_ins[text]): token for text, token in ids.items()}

    def encode(self, text: str) -> list[int]:
        found = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self._ids.get(token, token) for token in found]


def control_tokens(tokenizer: Any) -> ControlTokens:
    """Return the control tokens of a tokenizer, found once.

    >>> from drmas_pl.models.tiny import tiny_tokenizer
    >>> sorted(control_tokens(tiny_tokenizer(["<answer>"])).ids)
    ['<|assistant|>', '<|end|>', '<|pad|>', '<|system|>', '<|user|>']
    """
    known = _KNOWN.get(tokenizer)
    template = getattr(tokenizer, "chat_template", None)
    if known is None or known[0] != template:
        known = _KNOWN[tokenizer] = (template, ControlTokens(tokenizer))
    return known[1]


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return ids as text letter by letter, with control tokens, and with the spaces that some tokenizers remove before points.

    >>> from drmas_pl.models.tiny import tiny_tokenizer
    >>> tokenizer = tiny_tokenizer()
    >>> decode(tokenizer, tokenizer.encode("5 .5<|end|>"))
    '5 .5<|end|>'
    """
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return str(text)


_KNOWN: WeakKeyDictionary[Any, tuple[Any, ControlTokens]] = WeakKeyDictionary()


def _control_ids(tokenizer: Any) -> dict[str, int]:
    special = set(getattr(tokenizer, "all_special_ids", ()))
    template = str(getattr(tokenizer, "chat_template", None) or "")
    return {
        str(token): index
        for index, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
        if token.special or index in special or _is_marker(str(token), template)
    }


def _is_marker(text: str, template: str) -> bool:
    return bool(_PIPED.fullmatch(text) or (_MARKER.fullmatch(text) and text in template))


def _renamed(record: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Give tokens of a serialised tokenizer other texts, in its list of added tokens and in the model's vocabulary."""
    for token in record["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = record["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(text, text): index for text, index in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if names.keys().isdisjoint(_joined(pair))]
    return record


def _joined(pair: str | Sequence[str]) -> tuple[str, ...]:
    left, right = pair.split(" ") if isinstance(pair, str) else pair
    return left, right, left + right
