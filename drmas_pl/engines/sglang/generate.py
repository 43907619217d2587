"""Ask one server for many completions, as sglang's ``/generate`` speaks of them, and read every answer."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from drmas_pl.engines.sglang.client import RequestTimeout, ServerLost
from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.settings import ServerApi
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest

log = logging.getLogger(__name__)


def generate_all(
    server: Server,
    requests: Sequence[GenerationRequest],
    max_tokens: Sequence[int],
    *,
    stop_token_ids: Collection[int],
    adapter: str | None,
    version: int,
    named: bool = True,
) -> list[Completion | ServerLost]:
    """Generate one completion per request.

    Args:
        server: Holds the weights ``version``.
        requests: What to continue, samples of a task beside each other.
        max_tokens: Largest number of tokens to sample, for each request.
        stop_token_ids: Ids that end a response.
        adapter: LoRA adapter to generate with.
        version: Version stamped on the completions.
        named: Whether the server knows its weights by this version.

    Returns:
        For each request its completion, with finish reason ``abort`` where the server refused it or did not answer in time; or the
        error where the server went away.

    Raises:
        EngineError: An answer contradicts itself or names other weights.
    """
    bodies = [
        generate_body(
            request,
            max_tokens=limit,
            stop_token_ids=stop_token_ids,
            api=server.api,
            rid=uuid.uuid4().hex,
            adapter=adapter,
        )
        for request, limit in zip(requests, max_tokens)
    ]
    if server.data_parallel > 1:
        for body, rank in zip(bodies, task_ranks(requests, server.data_parallel)):
            body[server.api.rank_field] = rank
    try:
        answers = server.client.post_all("/generate", bodies, alive=lambda: server.alive)
    except BaseException:
        # whatever interrupts the wait, the server would go on computing for nobody
        abort_all(server)
        raise
    found: list[Completion | ServerLost] = []
    for body, answer in zip(bodies, answers):
        if isinstance(answer, ServerLost):
            found.append(answer)
        elif isinstance(answer, EngineError):
            _give_up(server, body["rid"], answer)
            found.append(Completion((), (), "abort", version))
        else:
            found.append(read_completion(answer, version=version, named=named))
    return found


def generate_body(
    request: GenerationRequest,
    *,
    max_tokens: int,
    stop_token_ids: Collection[int],
    api: ServerApi,
    rid: str,
    adapter: str | None = None,
) -> dict[str, Any]:
    """Return the body that asks for one completion.

    Everything that shapes the distribution is written out, so that no default of the server has a say.

    Args:
        request: What to continue.
        max_tokens: Largest number of tokens to sample.
        stop_token_ids: Ids that end a response.
        api: Of the version that the server runs.
        rid: Name of the request, by which it can be aborted.
        adapter: LoRA adapter to generate with.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": list(request.prompt_ids),
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "sampling_seed": api.seed(request.seed),
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(stop_token_ids),
            # what ended the response was sampled, and is trained on
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        },
    }
    return body if adapter is None else {**body, "lora_path": adapter}


def read_completion(answer: Mapping[str, Any], *, version: int, named: bool = True) -> Completion:
    """Read what the server sampled.

    Args:
        answer: Decoded answer of ``/generate`` to one :func:`generate_body`.
        version: Version of the weights that the server is known to hold.
        named: Whether the server was told this version; it does not learn of those of adapters.

    Raises:
        EngineError: The answer contradicts itself, or names other weights.

    >>> meta = {"finish_reason": {"type": "length", "length": 1}, "output_token_logprobs": [[-0.5, 7, None]], "weight_version": "3"}
    >>> read_completion({"output_ids": [7], "meta_info": meta}, version=3)
    Completion(token_ids=(7,), logprobs=(-0.5,), finish_reason='length', weights_version=3)
    """
    meta = answer["meta_info"]
    reason = (meta.get("finish_reason") or {}).get("type")
    if reason not in ("stop", "length", "abort"):
        raise EngineError(
            f"the server ended a response with {meta.get('finish_reason')!r}; expected stop, length or abort"
        )
    ids = tuple(answer.get("output_ids") or ())
    logprobs = meta.get("output_token_logprobs") or ()
    if reason == "abort":
        # an aborted response may lack the log-probs of its last tokens, and nobody trains on it
        return Completion(ids[: len(logprobs)], _values(logprobs[: len(ids)]), "abort", version)
    if [entry[1] for entry in logprobs] != list(ids):
        raise EngineError(
            f"the server sampled {len(ids)} ids but gave log-probs of {len(logprobs)} or of others; use a supported version"
        )
    found = str(meta.get("weight_version", version))
    if named and found != str(version):
        raise EngineError(
            f"the server sampled with weights {found!r}, but version {version} was sent to it; does somebody else use it?"
        )
    return Completion(ids, _values(logprobs), reason, version)


def task_ranks(requests: Sequence[GenerationRequest], ranks: int) -> list[int]:
    """Spread tasks over data-parallel ranks, all requests of a task on one, so that they share its prefix cache.

    >>> from drmas_pl.types import SamplingParams
    >>> make = lambda task: GenerationRequest((1,), SamplingParams(), seed=0, order=(task, 0))
    >>> task_ranks([make("a"), make("b"), make("a"), make("c")], ranks=2)
    [0, 1, 0, 0]
    """
    known: dict[Any, int] = {}
    return [known.setdefault(request.order[:1], len(known)) % ranks for request in requests]


def abort_all(server: Server) -> None:
    """Have the server end everything that it is at work on; what it has so far is answered with finish reason ``abort``."""
    with suppress(EngineError):
        server.client.post("/abort_request", {"rid": "", "abort_all": True}, timeout=5.0)


def _give_up(server: Server, rid: str, error: EngineError) -> None:
    """Say why a request is aborted, and tell the server where it may still be at work on it."""
    log.warning("a request is aborted: %s", error)
    if isinstance(error, RequestTimeout):
        with suppress(EngineError):
            server.client.post("/abort_request", {"rid": rid}, timeout=5.0)


def _values(logprobs: Sequence[Sequence[Any]]) -> tuple[float, ...]:
    return tuple(float(entry[0]) for entry in logprobs)
