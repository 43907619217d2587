"""Ask one server for many completions and make something of every answer."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress

from drmas_pl.engines.sglang.client import RequestTimeout, ServerLost
from drmas_pl.engines.sglang.protocol import generate_body, read_completion, task_ranks
from drmas_pl.engines.sglang.server import Server
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest

log = logging.getLogger(__name__)


def ask(
    server: Server,
    requests: Sequence[GenerationRequest],
    rooms: Sequence[int],
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
        rooms: Largest number of tokens to sample, for each request.
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
            room=room,
            stop_token_ids=stop_token_ids,
            dialect=server.dialect,
            rid=uuid.uuid4().hex,
            adapter=adapter,
        )
        for request, room in zip(requests, rooms)
    ]
    if server.data_parallel > 1:
        for body, rank in zip(bodies, task_ranks(requests, server.data_parallel)):
            body[server.dialect.rank_field] = rank
    try:
        answers = server.client.post_all("/generate", bodies, alive=lambda: server.alive)
    except BaseException:
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
