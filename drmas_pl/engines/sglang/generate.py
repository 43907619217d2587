"""One request to a server, as sglang's ``/generate`` speaks of it, and its answer."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.settings import ServerApi
from drmas_pl.engines.stop_strings import StopStringMatcher
from drmas_pl.errors import EngineError
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Completion, GenerationRequest


class TaskRanks:
    """Spreads tasks over data-parallel ranks, all requests of a task on one, so that they share its prefix cache.

    >>> from drmas_pl.types import SamplingParams
    >>> make = lambda task: GenerationRequest((1,), SamplingParams(), seed=0, order=(task, 0))
    >>> spread = TaskRanks()
    >>> [spread.rank_of(make(task), ranks=2) for task in "abac"]
    [0, 1, 0, 0]
    """

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def rank_of(self, request: GenerationRequest, ranks: int) -> int:
        """Return the rank of a request's task, the next one in turn for a new task."""
        return self._places.setdefault(request.order[:1], len(self._places)) % ranks

    def clear(self) -> None:
        """Forget all tasks."""
        self._places.clear()


@dataclass(frozen=True, slots=True)
class SamplingTarget:
    """A server that is ready, and what it samples with.

    Attributes:
        server: Holds the weights ``version``.
        stop_token_ids: Ids that end a response.
        adapter: LoRA adapter to generate with.
        version: Version stamped on the completions.
        named: Whether the server knows its weights by this version.
        stop_texts: Recognises stop texts that began in what was sampled before.
    """

    server: Server
    stop_token_ids: frozenset[int]
    adapter: str | None
    version: int
    named: bool
    stop_texts: StopStringMatcher

    def start(
        self, request: GenerationRequest, *, max_tokens: int, rid: str, ranks: TaskRanks
    ) -> Future[Any]:
        """Send a request and return its pending answer.

        Args:
            request: What to continue.
            max_tokens: Largest number of tokens to sample.
            rid: Name of the request, by which it can be aborted.
            ranks: Chooses among several copies of the weights.

        Raises:
            ServerLost: The connection is closed.
        """
        body = generate_body(
            request,
            max_tokens=max_tokens,
            stop_token_ids=self.stop_token_ids,
            api=self.server.api,
            rid=rid,
            adapter=self.adapter,
        )
        if self.server.data_parallel > 1:
            body[self.server.api.rank_field] = ranks.rank_of(request, self.server.data_parallel)
        return self.server.client.start("/generate", body)

    def read(self, answer: Mapping[str, Any], request: GenerationRequest) -> Completion:
        """Return the completion in an answer; see :func:`read_completion`."""
        found = read_completion(answer, version=self.version, named=self.named)
        return cut_at_stop_text(found, request, self.stop_texts) if request.sampled_ids else found

    def abort(self, rid: str) -> None:
        """Have the server end a request, which it then answers with finish reason ``abort``; does not wait for that."""
        # a server that is gone has ended it already
        with suppress(EngineError):
            self.server.client.start("/abort_request", {"rid": rid})


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
    # random numbers of its own, in case that the server counts them from the first token that it adds
    seed = derive_seed(request.seed, len(request.sampled_ids)) if request.sampled_ids else request.seed
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": [*request.prompt_ids, *request.sampled_ids],
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
            "sampling_seed": api.seed(seed),
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
    Completion(token_ids=(7,), logprobs=(-0.5,), finish_reason='length', weights_version=3, later_versions=())
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
        # an aborted response may lack the log-probs of its last tokens
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


def cut_at_stop_text(
    completion: Completion, request: GenerationRequest, stop_texts: StopStringMatcher
) -> Completion:
    """Return what was sampled up to a stop text that begins in ``sampled_ids``, where the server did not look for it."""
    stop = request.sampling.stop
    for count in range(1, len(completion.token_ids) + 1) if stop else ():
        if stop_texts.reached((*request.sampled_ids, *completion.token_ids[:count]), stop):
            return replace(
                completion,
                token_ids=completion.token_ids[:count],
                logprobs=completion.logprobs[:count],
                finish_reason="stop",
            )
    return completion


def _values(logprobs: Sequence[Sequence[Any]]) -> tuple[float, ...]:
    return tuple(float(entry[0]) for entry in logprobs)
