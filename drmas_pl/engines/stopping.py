"""Recognise stop texts while sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """The part of a Transformers tokenizer that turns ids into text."""

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = ...,
        clean_up_tokenization_spaces: bool = ...,
    ) -> str: ...


class StopTexts:
    """Decides after each token whether a response has just produced one of its stop texts.

    Args:
        tokenizer: Turns ids into text.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def reached(self, ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Tell whether the newest token completes a stop text.

        Args:
            ids: Sampled ids so far, at least one.
            stop: Texts that end the response.
        """
        piece = self._piece(ids[-1])
        # a piece with a replacement character is part of a letter, whose rest is unknown here
        candidates = [text for text in stop if text[-1] in piece or "\ufffd" in piece]
        if not candidates:
            return False
        # a letter takes up to four byte tokens; a few more so that a cut letter at the front does no harm
        window = 4 * max(map(len, candidates)) + 4
        text = self._decode(ids[-window:])
        return any(candidate in text for candidate in candidates)

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._decode([token])
        return self._pieces[token]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
