"""The contract that every inference engine must keep, as a suite for users' own tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drmas_pl.engines.base import Engine
from drmas_pl.errors import CheckFailed, EngineError
from drmas_pl.types import Completion, GenerationRequest, SamplingParams


def check_engine(
    engine: Engine,
    *,
    prompts: Sequence[Sequence[int]] = ((1, 2, 3), (4, 5), (6, 7, 8, 9, 10)),
    samples: bool = True,
) -> None:
    """Check that an engine keeps the contract of :class:`drmas_pl.engines.base.Engine`.

    Args:
        engine: An engine that is awake; its weights version is changed.
        prompts: Token ids that its vocabulary knows.
        samples: Whether it draws from a distribution: different seeds then differ at temperature 1 and agree at 0.

    Raises:
        CheckFailed: The contract is broken.
    """
    requests = [
        GenerationRequest(tuple(prompt), SamplingParams(max_new_tokens=cap), seed=seed, order=(seed, at))
        for seed, cap in ((11, 6), (12, 1), (13, 6), (14, 3))
        for at, prompt in enumerate(prompts)
    ]
    engine.sync(engine.weights_version + 1)
    _demand(engine.generate([]) == [], "generate([])", "[]", "something")
    reference = engine.generate(requests)
    _demand(len(reference) == len(requests), "generate", f"{len(requests)} completions", len(reference))
    for request, completion in zip(requests, reference):
        _check_completion(completion, request, engine.weights_version)
    for size in (8, 4, 3, 1):
        parts = [
            completion
            for at in range(0, len(requests), size)
            for completion in engine.generate(requests[at : at + size])
        ]
        _demand_same(parts, reference, f"generating {size} requests at a time")
    _demand_same(engine.generate(requests[::-1])[::-1], reference, "generating in reverse order")
    if samples:
        greedy = [
            GenerationRequest(tuple(prompts[0]), SamplingParams(temperature=0, max_new_tokens=6), seed=seed)
            for seed in (1, 2)
        ]
        _demand_same(
            engine.generate(greedy[:1]), engine.generate(greedy[1:]), "greedy decoding with another seed"
        )
        many = [
            GenerationRequest(tuple(prompts[0]), SamplingParams(max_new_tokens=6), seed=seed)
            for seed in range(16)
        ]
        different = len({completion.token_ids for completion in engine.generate(many)})
        _demand(different > 1, "16 seeds at temperature 1", "different responses", "16 equal ones")
    _check_room(engine, prompts[0])
    _check_sleep(engine, requests)


def _check_completion(completion: Completion, request: GenerationRequest, version: int) -> None:
    count = len(completion.token_ids)
    cap = request.sampling.max_new_tokens
    _demand(1 <= count <= cap, "the number of sampled ids", f"1 to {cap}", count)
    _demand(
        len(completion.logprobs) == count,
        "the number of log-probs",
        f"{count}, one per id",
        len(completion.logprobs),
    )
    fine = all(math.isfinite(logprob) and logprob <= 1e-6 for logprob in completion.logprobs)
    _demand(fine, "log-probs", "finite numbers up to 0", completion.logprobs)
    _demand(
        completion.finish_reason in ("stop", "length", "abort"),
        "finish_reason",
        "stop, length or abort",
        completion.finish_reason,
    )
    _demand(
        count == cap or completion.finish_reason != "length",
        "finish_reason",
        f"length only at {cap} tokens",
        f"length at {count}",
    )
    _demand(
        completion.weights_version == version,
        "weights_version",
        f"{version}, as synced",
        completion.weights_version,
    )


def _check_room(engine: Engine, prompt: Sequence[int]) -> None:
    sampling = SamplingParams(max_new_tokens=8)
    _demand_error(engine, GenerationRequest((), sampling, seed=0), "an empty prompt")
    if engine.context_length is not None:
        filled = (tuple(prompt) * engine.context_length)[: engine.context_length]
        _demand_error(engine, GenerationRequest(filled, sampling, seed=0), "a prompt that fills the context")
        completion = engine.generate([GenerationRequest(filled[:-2], sampling, seed=0)])[0]
        _demand(
            len(completion.token_ids) <= 2,
            "a prompt two tokens short of the context",
            "at most 2 ids",
            len(completion.token_ids),
        )


def _check_sleep(engine: Engine, requests: Sequence[GenerationRequest]) -> None:
    before = engine.generate(requests)
    engine.sleep()
    _demand_error(engine, requests[0], "generate() of a sleeping engine")
    engine.wake()
    _demand_same(engine.generate(requests), before, "generating after sleep and wake")


def _demand_error(engine: Engine, request: GenerationRequest, what: str) -> None:
    try:
        found = engine.generate([request])
    except EngineError:
        return
    raise CheckFailed(f"{what}: expected EngineError, got {found}")


def _demand_same(found: Sequence[Completion], reference: Sequence[Completion], what: str) -> None:
    for left, right in zip(found, reference, strict=True):
        _demand(left.token_ids == right.token_ids, what, f"unchanged ids {right.token_ids}", left.token_ids)
        close = all(abs(a - b) <= 1e-4 for a, b in zip(left.logprobs, right.logprobs))
        _demand(close, what, f"log-probs within 1e-4 of {right.logprobs}", left.logprobs)


def _demand(holds: bool, what: str, expected: str, got: object) -> None:
    if not holds:
        raise CheckFailed(f"{what}: expected {expected}, got {got}")
