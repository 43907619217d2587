"""What one engine knows of its server, and what has to happen before it may ask it for anything.

::

    unknown ──server()──▶ met ──prepare()──▶ ready (weights current and probed) ──rest()──▶ met
       ▲                   └────────────────────┴── drop(), or somebody replaced the server ──┐
       └──────────────────────────────────────────────────────────────────────────────────────┘

Engines of adapters on one base share a server, so each of them notes which one it knows things about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from torch import Tensor, nn

from drmas_pl.engines.served import policy_logprobs
from drmas_pl.engines.sglang.assembly import check_release
from drmas_pl.engines.sglang.keeper import ServerManager
from drmas_pl.engines.sglang.probe import check_probe, probe_ids
from drmas_pl.engines.sglang.protocol import probe_body, read_probe
from drmas_pl.engines.sglang.residency import WEIGHTS
from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.transport import Transport
from drmas_pl.engines.sglang.weights import WholePolicy
from drmas_pl.errors import EngineError

log = logging.getLogger(__name__)
Precision = Callable[[], AbstractContextManager[Any]]


class ServerSession:
    """Uses a keeper's server for one policy.

    Attributes:
        met: The server that everything here tells of; None while none is known.
        context_length: Largest number of prompt plus response tokens.
        detached: Whether the policy has moved on from the weights that the server holds.

    Args:
        keeper: Has the server, maybe for others too.
        transport: Brings weights to it.
        policy: The model that is trained.
        tokenizer: Its tokenizer.
        tolerance: Largest difference between the server's and the policy's log-probs.
        context_length: That of the policy.
    """

    def __init__(
        self,
        keeper: ServerManager,
        transport: Transport,
        *,
        policy: nn.Module,
        tokenizer: Any,
        tolerance: float,
        context_length: int | None,
    ) -> None:
        self.keeper, self.transport, self.policy, self.tokenizer = keeper, transport, policy, tokenizer
        self.tolerance, self.context_length = tolerance, context_length
        self.met: Server | None = None
        self.detached = self._ready = self._untouched = self._probed = False
        # version of the weights that the server is known to hold; None while it is unknown
        self._held: int | None = None
        # token ids and log-probs to compare the server's with; None asks the policy
        self._expected: tuple[tuple[int, ...], tuple[float, ...]] | None = None
        keeper.join(self)

    def server(self, version: int) -> Server:
        """Return the running server, started from the policy's weights, which are ``version``, if need be.

        Raises:
            EngineError: It cannot be started, or cannot hold these weights.
        """
        keeper = self.keeper
        with keeper.lock:
            if keeper.server is not None and not keeper.server.alive:
                log.warning("the server has ended while nobody used it; %s", keeper.server.state())
                self.drop(keeper.server)
            if self.detached and (keeper.server is None or keeper.server is not self.met):
                raise EngineError(
                    f"the server was lost while the trainer moved on from weights {version}, with which alone it could be started again; "
                    "go on from the last checkpoint with resume=RUN_FOLDER"
                )
            started = keeper.server is None
            server = keeper.server or keeper.start(version)
            if server is not self.met:
                self._meet(
                    server, version, untouched=started and keeper.url is None and self.transport.replaces
                )
            return server

    def resume(self, version: int) -> None:
        """Give the server the memory of its weights back, which it keeps until :meth:`rest`."""
        with self.keeper.lock:
            self.keeper.residency.resume_weights(self.server(version).client)
            self.keeper.rouse(self)

    def prepare(self, version: int, autocast: Precision) -> Server:
        """Return the server, which holds the weights ``version`` and all its memory, and gives the policy's log-probs.

        Args:
            version: Version of the policy's weights.
            autocast: Opens the precision in which the policy computes.

        Raises:
            EngineError: It does not take the weights, or does not give these log-probs.
        """
        residency = self.keeper.residency
        with self.keeper.lock:
            server = self.server(version)
            if self._ready and self._held == version:
                return server
            residency.resume_weights(server.client)
            if self._untouched:
                # it was just started from these very weights, which have a new name at most
                server.client.post(
                    "/update_weight_version", {"new_version": str(version), "abort_all_requests": False}
                )
            elif self._held != version:
                if self.transport.replaces:
                    residency.pause(server.client)
                self.transport.push(server, self.policy, version)
                self._probed = False
            self._held, self._untouched = version, False
            residency.resume_cache(server.client)
            if not self._probed:
                self._probe(server, version, autocast)
            self._ready = True
            return server

    def rest(self) -> None:
        """Let the server release what is configured, unless others need it.

        Raises:
            EngineError: Memory was not released, or the server is gone.
        """
        self._ready = self._untouched = self.detached = False
        try:
            self.keeper.rest(self, next(self.policy.parameters()).device)
        finally:
            if WEIGHTS in self.keeper.residency.released and not self.keeper.keeps_weights:
                self._held = None

    def outdate(self, *, asleep: bool) -> None:
        """Note that the policy's weights are no longer those that the server holds, unless it has just been started from them."""
        self.detached = False
        if asleep or not self._untouched:
            self._held = None

    def take(self, weights: Mapping[str, Tensor], probe: tuple[int, ...], logprobs: Sequence[float]) -> None:
        """Use these weights instead of the policy's; see :meth:`drmas_pl.engines.served.ServedEngine.take`."""
        sharded = self.policy.sharded if isinstance(self.policy, WholePolicy) else self.policy
        self.policy = self.keeper.policy = WholePolicy(sharded, weights)
        self._expected = probe, tuple(logprobs)

    def detach(self) -> None:
        """Note that the policy's weights change from now on; a copy of its own it may use all the same."""
        self.detached = not isinstance(self.policy, WholePolicy)

    def probe_ids(self) -> tuple[int, ...]:
        """Return the token ids that trainer and server both score."""
        return probe_ids(self.tokenizer, limit=min(64, (self.context_length or 64) - 1))

    def drop(self, lost: Server | None) -> None:
        """End a server that is lost, unless somebody has replaced it, and forget everything that is known of it."""
        self._forget()
        self.keeper.drop(lost)

    def _meet(self, server: Server, version: int, *, untouched: bool) -> None:
        """Begin to use a server; ``untouched`` if it has just been started from the policy's weights."""
        self._forget()
        if server.data_parallel > 1 and not self.transport.reaches_all:
            raise EngineError(
                f"the server at {server.client.url} has {server.data_parallel} copies of the weights; use engine.sync=disk"
            )
        if self.keeper.url is not None and not self.transport.replaces:
            check_release(self.keeper.release, server)
        self.met, self._untouched, self._held = server, untouched, version if untouched else None
        limits = [limit for limit in (self.context_length, server.context_length) if limit is not None]
        self.context_length = min(limits, default=None)

    def _probe(self, server: Server, version: int, autocast: Precision) -> None:
        """Compare the server's log-probs with the policy's on a short text."""
        ids = self._expected[0] if self._expected else self.probe_ids()
        found = read_probe(server.client.post("/generate", probe_body(ids, adapter=self.transport.adapter)))
        wanted = self._expected[1] if self._expected else policy_logprobs(self.policy, ids, autocast)
        gap = check_probe(found, wanted, self.tolerance)
        self._probed = True
        log.debug("weights %d: the server's log-probs are within %.2g of the trainer's", version, gap)

    def _forget(self) -> None:
        """Know nothing of the server."""
        with suppress(EngineError):
            self.transport.forget()
        self.met = self._held = None
        self._ready = self._untouched = self._probed = False
