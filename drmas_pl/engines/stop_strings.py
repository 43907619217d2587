"""Recognise stop texts while sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drmas_pl.tokens import decode


class StopStringMatcher:
    """Decides after each token whether a response has just produced one of its stop texts.

    Args:
        tokenizer: A Transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
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
        text = decode(self._tokenizer, ids[-window:])
        return any(candidate in text for candidate in candidates)

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = decode(self._tokenizer, [token])
        return self._pieces[token]
