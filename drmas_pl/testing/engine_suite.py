"""The contract that every inference engine must keep, as a suite for users' own tests."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait

from drmas_pl.engines.base import Engine
from drmas_pl.errors import CheckFailed, EngineError
from drmas_pl.types import Completion, GenerationRequest, SamplingParams


def check_engine(
    engine: Engine,
    *,
    prompts: Sequence[Sequence[int]] = ((1, 2, 3), (4, 5), (6, 7, 8, 9, 10)),
    samples: bool = True,
    patience: float = 60.0,
) -> None:
    """Check that an engine keeps the contract of :class:`drmas_pl.engines.base.Engine`.

    Args:
        engine: An engine that is awake; its weights version is changed.
        prompts: Token ids that its vocabulary knows.
        samples: Whether it draws from a distribution: different seeds then differ at temperature 1 and agree at 0.
        patience: Seconds that a request may go without any answer.

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
    _check_streams(engine, requests, reference, patience)
    _check_sleep(engine, requests)
    _check_sleep_under_way(engine, requests, reference, patience)
    _check_sync_under_way(engine, requests, reference, patience)


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


def _check_streams(
    engine: Engine, requests: Sequence[GenerationRequest], reference: Sequence[Completion], patience: float
) -> None:
    """Check that requests which come and go at different times are answered each for itself."""
    _demand(engine.idle, "idle of an engine with nothing to do", "True", engine.idle)
    half = len(requests) // 2
    futures = [engine.submit(request) for request in requests[:half]]
    engine.step()
    unanswerable = engine.submit(GenerationRequest((), requests[0].sampling, seed=0))
    futures += [engine.submit(request) for request in requests[half:]]
    given_up = engine.submit(requests[0])
    cancelled = given_up.cancel()
    _drive(engine, [*futures, unanswerable, given_up], patience)
    what = "requests submitted at different times"
    for future in futures:
        error = None if future.cancelled() else future.exception()
        _demand(not future.cancelled() and error is None, what, "completions", error or "a cancelled future")
    _demand_same([future.result() for future in futures], reference, what)
    # what was cancelled may still have to be cleared away
    engine.step()
    _demand(engine.idle, "idle when everything is answered", "True", engine.idle)
    error = unanswerable.exception()
    _demand(isinstance(error, EngineError), "the future of an empty prompt", "an EngineError", error)
    _demand(
        given_up.cancelled() == cancelled,
        "the future of a request that was cancelled",
        f"cancelled() is {cancelled}, as cancel() returned",
        given_up.cancelled(),
    )


def _check_sleep_under_way(
    engine: Engine, requests: Sequence[GenerationRequest], reference: Sequence[Completion], patience: float
) -> None:
    futures = [engine.submit(request) for request in requests]
    engine.step()
    engine.sleep()
    engine.wake()
    _drive(engine, futures, patience)
    _check_outcomes(futures, reference, "requests under way when the engine falls asleep")
    _demand_same(engine.generate(requests), reference, "generating after sleep with requests under way")


def _check_sync_under_way(
    engine: Engine, requests: Sequence[GenerationRequest], reference: Sequence[Completion], patience: float
) -> None:
    version = engine.weights_version
    futures = [engine.submit(request) for request in requests]
    engine.step()
    try:
        engine.sync(version + 1)
    except EngineError:
        # refused, so the engine still answers with the weights that it has
        _drive(engine, futures, patience)
        engine.sync(version + 1)
    _drive(engine, futures, patience)
    what = "requests under way when new weights come"
    for outcome in _check_outcomes(futures, reference, what):
        known = outcome.weights_version in (version, version + 1)
        _demand(known, what, f"weights_version {version} or {version + 1}", outcome.weights_version)
    (after,) = engine.generate(requests[:1])
    _demand(
        after.weights_version == version + 1,
        "weights_version after new weights",
        version + 1,
        after.weights_version,
    )


def _check_outcomes(
    futures: Sequence[Future[Completion]], reference: Sequence[Completion], what: str
) -> list[Completion]:
    """Return what was answered in full, and make sure that the rest was given up in one of the ways that the contract knows."""
    answered = []
    for future, expected in zip(futures, reference, strict=True):
        if future.cancelled():
            continue
        error = future.exception()
        if error is not None:
            _demand(isinstance(error, EngineError), what, "an EngineError or a completion", error)
            continue
        completion = future.result()
        if completion.finish_reason != "abort":
            _demand_same([completion], [expected], what)
            answered.append(completion)
    return answered


def _drive(engine: Engine, futures: Sequence[Future[Completion]], patience: float) -> None:
    """Step the engine until every future is done."""
    deadline = time.monotonic() + patience
    open_before = len(futures)
    while unanswered := [future for future in futures if not future.done()]:
        if len(unanswered) < open_before:
            open_before = len(unanswered)
            deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            raise CheckFailed(
                f"submit: expected every future to be done, got {len(unanswered)} of {len(futures)} without an answer for {patience:g} s"
            )
        if engine.idle:
            wait(unanswered, timeout=min(patience, 1.0), return_when="FIRST_COMPLETED")
        else:
            engine.step()


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


def _demand(holds: bool, what: str, expected: object, got: object) -> None:
    if not holds:
        raise CheckFailed(f"{what}: expected {expected}, got {got}")
