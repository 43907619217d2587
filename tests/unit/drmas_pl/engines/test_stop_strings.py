"""Stop texts across token borders, in other scripts and inside longer tokens."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.engines.stop_strings import StopStringMatcher
from drmas_pl.testing import tiny_tokenizer

TOKENIZER: Any = tiny_tokenizer(["</answer>", "end. And"])


def first_stop(text: str, *stop: str) -> int | None:
    """Feed a text token by token; return how many tokens were read when the stop text was complete."""
    ids = TOKENIZER.encode(text)
    stops = StopStringMatcher(TOKENIZER)
    return next((count for count in range(1, len(ids) + 1) if stops.reached(ids[:count], stop)), None)


@pytest.mark.parametrize(
    ("text", "stop", "count"),
    [
        ("abc STOP more", "STOP", 8),
        ("abc", "STOP", None),
        ("SSTOP", "STOP", 5),
        ("né語 x", "語", 6),
        ("x</answer>y", "</answer>", 2),
        ("the end. And so", "end.", 5),
        ("a \n\nb", "\n\n", 4),
        ("a b", " ", 2),
    ],
)
def test_the_token_that_completes_the_text_stops(text: str, stop: str, count: int | None) -> None:
    assert first_stop(text, stop) == count


def test_any_of_several_texts_stops() -> None:
    assert first_stop("one two", "two", "e t") == len("one t")


def test_a_long_response_is_searched_at_its_end_only() -> None:
    ids = TOKENIZER.encode("x" * 5000 + "END")
    assert StopStringMatcher(TOKENIZER).reached(ids, ["END"])
    assert not StopStringMatcher(TOKENIZER).reached([*ids, *TOKENIZER.encode("y" * 500)], ["END"])
