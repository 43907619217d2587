"""How many tokens a request may still sample."""

from __future__ import annotations

import logging
from typing import Any, Final

from drmas_pl.errors import EngineError
from drmas_pl.types import GenerationRequest

log = logging.getLogger(__name__)
# rotary embeddings whose factors depend on the longest row that is computed together with a row
_LENGTH_DEPENDENT: Final = ("longrope", "dynamic")


def usable_context(config: Any) -> int | None:
    """Return the largest number of prompt plus response tokens of a model.

    Some models change the factors of their rotary embedding at a certain length, for all rows that are computed together. A sample would
    then depend on its neighbours, so only the shorter range is used.

    Args:
        config: The model's Transformers configuration.

    Returns:
        The limit; None when it is unknown.
    """
    text = config.get_text_config()
    limit: int | None = getattr(text, "max_position_embeddings", None)
    for rope in _rope_parameters(text):
        kind = rope.get("rope_type", rope.get("type"))
        border = rope.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        if kind == "dynamic":
            border = border or limit
        if kind in _LENGTH_DEPENDENT and border is not None and (limit is None or border < limit):
            log.warning(
                "the rotary embedding of %s changes beyond %d tokens, where a sample would depend on longer ones beside it; "
                "prompts and responses are limited to that",
                text.model_type,
                border,
            )
            limit = int(border)
    return limit


def _rope_parameters(text: Any) -> list[dict[str, Any]]:
    """Return the settings of every rotary embedding; some models have one for each type of layer."""
    found = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if any(isinstance(value, dict) for value in found.values()):
        return [value for value in found.values() if isinstance(value, dict)]
    return [found]


def remaining_tokens(request: GenerationRequest, context_length: int | None) -> int:
    """Return how many tokens may be sampled: the request's cap, or less where the context ends before it.

    Args:
        request: What to continue.
        context_length: Largest number of prompt plus response tokens; None when unknown.

    Raises:
        EngineError: The prompt is empty or leaves no room for a single token.

    >>> from drmas_pl.types import SamplingParams
    >>> remaining_tokens(GenerationRequest((5, 6, 7), SamplingParams(max_new_tokens=10), seed=0), context_length=8)
    5
    """
    prompt = len(request.prompt_ids)
    sampled = len(request.sampled_ids)
    if prompt == 0:
        raise EngineError("a request has an empty prompt; the engine needs at least one token to continue")
    if context_length is None:
        return request.sampling.max_new_tokens - sampled
    if prompt + sampled >= context_length:
        raise EngineError(
            f"a prompt of {prompt + sampled} tokens leaves no room in a context of {context_length}; lower max_prompt_tokens below the "
            "context length"
        )
    return min(request.sampling.max_new_tokens, context_length - prompt) - sampled
