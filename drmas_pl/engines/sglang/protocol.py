"""Generation requests and completions as sglang's ``/generate`` speaks them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from drmas_pl.engines.sglang.versions import ServerApi
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest


def generate_body(
    request: GenerationRequest,
    *,
    room: int,
    stop_token_ids: Collection[int],
    dialect: ServerApi,
    rid: str,
    adapter: str | None = None,
) -> dict[str, Any]:
    """Return the body that asks for one completion.

    Everything that shapes the distribution is written out, so that no default of the server has a say.

    Args:
        request: What to continue.
        room: Largest number of tokens to sample.
        stop_token_ids: Ids that end a response.
        dialect: Version spoken.
        rid: Name of the request, by which it can be aborted.
        adapter: LoRA adapter to generate with.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": list(request.prompt_ids),
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "sampling_seed": dialect.seed(request.seed),
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


def probe_body(prompt_ids: Sequence[int], *, adapter: str | None = None) -> dict[str, Any]:
    """Return the body that asks for the log-probs of a prompt's own tokens."""
    body = {
        "input_ids": list(prompt_ids),
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
    }
    return body if adapter is None else {**body, "lora_path": adapter}


def read_probe(answer: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the log-prob of every prompt token after the first, which has none.

    >>> read_probe({"meta_info": {"input_token_logprobs": [[None, 5, None], [-2.0, 6, None]]}})
    (-2.0,)
    """
    return _values(answer["meta_info"]["input_token_logprobs"][1:])


def task_ranks(requests: Sequence[GenerationRequest], ranks: int) -> list[int]:
    """Spread tasks over data-parallel ranks, all requests of a task on one, so that they share its prefix cache.

    >>> from drmas_pl.types import SamplingParams
    >>> make = lambda task: GenerationRequest((1,), SamplingParams(), seed=0, order=(task, 0))
    >>> task_ranks([make("a"), make("b"), make("a"), make("c")], ranks=2)
    [0, 1, 0, 0]
    """
    known: dict[Any, int] = {}
    return [known.setdefault(request.order[:1], len(known)) % ranks for request in requests]


def _values(logprobs: Sequence[Sequence[Any]]) -> tuple[float, ...]:
    return tuple(float(entry[0]) for entry in logprobs)
