"""Room for a response: cap, context and refusals."""

from __future__ import annotations

import pytest

from drmas_pl.engines.limits import remaining_tokens
from drmas_pl.errors import EngineError
from drmas_pl.types import GenerationRequest, SamplingParams


def request(prompt: int, cap: int) -> GenerationRequest:
    return GenerationRequest((1,) * prompt, SamplingParams(max_new_tokens=cap), seed=0)


@pytest.mark.parametrize(
    ("prompt", "cap", "context", "room"), [(3, 5, None, 5), (3, 5, 100, 5), (3, 5, 7, 4), (6, 5, 7, 1)]
)
def test_room_is_the_smaller_of_cap_and_context(
    prompt: int, cap: int, context: int | None, room: int
) -> None:
    assert remaining_tokens(request(prompt, cap), context) == room


def test_no_room_is_refused_with_numbers() -> None:
    with pytest.raises(
        EngineError, match=r"prompt of 7 tokens leaves no room in a context of 7; lower max_prompt_tokens"
    ):
        remaining_tokens(request(7, 5), 7)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(EngineError, match="empty prompt"):
        remaining_tokens(request(0, 5), None)
