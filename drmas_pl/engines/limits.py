"""How many tokens a request may still sample."""

from __future__ import annotations

from drmas_pl.errors import EngineError
from drmas_pl.types import GenerationRequest


def response_room(request: GenerationRequest, context_length: int | None) -> int:
    """Return how many tokens may be sampled: the request's cap, or less where the context ends before it.

    Args:
        request: What to continue.
        context_length: Largest number of prompt plus response tokens; None when unknown.

    Raises:
        EngineError: The prompt is empty or leaves no room for a single token.

    >>> from drmas_pl.types import SamplingParams
    >>> response_room(GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=10), seed=0), context_length=8)
    5
    """
    prompt = len(request.prompt_ids)
    if prompt == 0:
        raise EngineError("a request has an empty prompt; the engine needs at least one token to continue")
    if context_length is None:
        return request.sampling.max_new_tokens
    if prompt >= context_length:
        raise EngineError(
            f"a prompt of {prompt} tokens leaves no room in a context of {context_length}; lower max_prompt_tokens below the context length"
        )
    return min(request.sampling.max_new_tokens, context_length - prompt)
