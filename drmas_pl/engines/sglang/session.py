"""What one engine knows of its server, and what has to happen before it may ask it for anything.

::

    ASLEEP ──wake()──▶ STARTED or AWAKE ──prepare()──▶ READY ──detach()──▶ DETACHED
       ▲                      ▲                          │                    │
       │                      └── outdate(), a new server ┴── outdate() ──────┘
       └── sleep(), from every awake state; close() leads to CLOSED for good

Engines of adapters on one base share a server, so each of them notes which one it knows things about. Before a session is READY, trainer
and server score one text, and the log-probs are compared: both hold the same weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from drmas_pl.engines.served import policy_logprobs
from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.server_manager import TAGS, WEIGHTS, ServerManager
from drmas_pl.engines.sglang.weight_sync.base import WeightSync, WholePolicy
from drmas_pl.errors import EngineError, ServerNotReplaced

log = logging.getLogger(__name__)
Precision = Callable[[], AbstractContextManager[Any]]
# both sides score this text
_TEXT = (
    "Question: which of the two rivers is longer? "
    "The first flows for 2,850 km through ten countries, the second for 1,233 km."
)
# Largest difference of a token's log-prob that rounding explains, by type of the server's weights.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.1}


class EngineState(Enum):
    """What an engine may do with its server.

    Attributes:
        ASLEEP: Nothing until it is woken; the server may have released its memory.
        STARTED: Awake, with a server that was just started from the policy's weights, which may have a newer name by now.
        AWAKE: Awake, with a server whose weights are other ones or unknown.
        READY: The server holds the policy's weights, all its memory, and gives the policy's log-probs.
        DETACHED: As READY, but the policy has moved on: the server must not be lost.
        CLOSED: Nothing, for good.
    """

    ASLEEP = "asleep"
    STARTED = "started"
    AWAKE = "awake"
    READY = "ready"
    DETACHED = "detached"
    CLOSED = "closed"

    @property
    def is_awake(self) -> bool:
        """Whether the engine may generate, after whatever has to be prepared."""
        return self not in (EngineState.ASLEEP, EngineState.CLOSED)


class ServerSession:
    """Uses a manager's server for one policy.

    Attributes:
        state: What the engine may do.
        known: The server that everything here tells of; None while none is known.
        context_length: Largest number of prompt plus response tokens.

    Args:
        manager: Has the server, maybe for others too.
        weight_sync: Brings weights to it.
        policy: The model that is trained.
        tokenizer: Its tokenizer.
        tolerance: Largest difference between the server's and the policy's log-probs.
        context_length: That of the policy.
    """

    def __init__(
        self,
        manager: ServerManager,
        weight_sync: WeightSync,
        *,
        policy: nn.Module,
        tokenizer: Any,
        tolerance: float,
        context_length: int | None,
    ) -> None:
        self.manager = manager
        self.weight_sync = weight_sync
        self.policy = policy
        self.tokenizer = tokenizer
        self.tolerance = tolerance
        self.context_length = context_length
        self.state = EngineState.ASLEEP
        self.known: Server | None = None
        # version of the weights that the server is known to hold; None while it is unknown
        self._held: int | None = None
        # whether log-probs were compared since these weights came
        self._checked = False
        # token ids and log-probs to compare the server's with; None asks the policy
        self._expected: tuple[tuple[int, ...], tuple[float, ...]] | None = None
        manager.register(self)

    @property
    def ready_server(self) -> Server | None:
        """The server if it can be asked for samples at once, as far as is known; asking takes no lock."""
        ready = self.state in (EngineState.READY, EngineState.DETACHED) and self.manager.server is self.known
        return self.known if ready else None

    def server(self, version: int) -> Server:
        """Return the running server, started from the policy's weights, which are ``version``, if need be.

        Raises:
            EngineError: It cannot be started, or cannot hold these weights.
        """
        manager = self.manager
        with manager.lock:
            if manager.server is not None and not manager.server.alive:
                log.warning("the server has ended while nobody used it; %s", manager.server.exit_report())
                self.drop(manager.server)
            gone = manager.server is None or manager.server is not self.known
            if self.state is EngineState.DETACHED and gone:
                raise ServerNotReplaced(
                    f"the server was lost while the trainer moved on from weights {version}, with which alone it could be started again; "
                    "it can be replaced with the next weights"
                )
            starts = manager.server is None
            server = manager.server or manager.start(version)
            if server is not self.known:
                self._get_to_know(server)
                if starts and manager.url is None and self.weight_sync.replaces:
                    self._held = version
                    self._enter(EngineState.STARTED)
            return server

    def wake(self, version: int) -> None:
        """Give the server the memory of its weights back, which it keeps until :meth:`sleep`; called again when it was lost meanwhile."""
        if self.state is EngineState.ASLEEP:
            self.state = EngineState.AWAKE
        with self.manager.lock:
            server = self.server(version)
            self.manager.memory.resume_weights(server.client)
            self.manager.mark_awake(self)

    def prepare(self, version: int, autocast: Precision) -> Server:
        """Return the server, which holds the weights ``version`` and all its memory, and gives the policy's log-probs.

        Args:
            version: Version of the policy's weights.
            autocast: Opens the precision in which the policy computes.

        Raises:
            EngineError: It does not take the weights, or does not give these log-probs.
        """
        with self.manager.lock:
            server = self.server(version)
            if self.state in (EngineState.READY, EngineState.DETACHED):
                return server
            memory = self.manager.memory
            memory.resume_weights(server.client)
            if self.state is EngineState.STARTED:
                # it was just started from these very weights, which have a new name at most
                body = {"new_version": str(version), "abort_all_requests": False}
                server.client.post("/update_weight_version", body)
            elif self._held != version:
                if self.weight_sync.replaces:
                    memory.pause(server.client)
                self.weight_sync.push(server, self.policy, version)
                self._checked = False
            # noted now, so that weights which arrived are not sent again should the next request fail
            self._held = version
            self._enter(EngineState.AWAKE)
            memory.resume_cache(server.client)
            if not self._checked:
                self._check_weights(server, version, autocast)
            self._enter(EngineState.READY)
            return server

    def sleep(self) -> None:
        """Let the server release what is configured, unless others need it.

        Raises:
            EngineError: Memory was not released, or the server is gone.
        """
        self.state = EngineState.ASLEEP
        try:
            self.manager.release_memory(self, next(self.policy.parameters()).device)
        finally:
            # also after an error: it may have come when the weights were already released
            if self.manager.lost_weights:
                self._held = None

    def outdate(self) -> None:
        """Note that the policy's weights are no longer those that the server holds, unless it has just been started from them."""
        if self.state is not EngineState.STARTED:
            self._held = None
            self._enter(EngineState.AWAKE)

    def take(self, weights: Mapping[str, Tensor], probe: tuple[int, ...], logprobs: Sequence[float]) -> None:
        """Use these weights instead of the policy's; see :meth:`drmas_pl.engines.served.ServedEngine.take`."""
        sharded = self.policy.sharded if isinstance(self.policy, WholePolicy) else self.policy
        whole = WholePolicy(sharded, weights)
        self.policy = whole
        self.manager.policy = whole
        self._expected = probe, tuple(logprobs)

    def detach(self) -> None:
        """Note that the policy's weights change from now on; a copy of its own it may use all the same."""
        if not isinstance(self.policy, WholePolicy):
            self._enter(EngineState.DETACHED)

    def probe_ids(self) -> tuple[int, ...]:
        """Return the token ids that trainer and server both score."""
        return weight_check_ids(self.tokenizer, limit=min(64, (self.context_length or 64) - 1))

    def drop(self, lost: Server | None) -> None:
        """End a server that is lost, unless somebody has replaced it, and forget everything that is known of it."""
        self._forget()
        self.manager.drop(lost)

    def close(self) -> None:
        """Refuse everything for good."""
        self.state = EngineState.CLOSED

    def _enter(self, state: EngineState) -> None:
        """Enter another awake state; what still runs in a thread of the engine wakes neither a sleeping nor a closed one."""
        if self.state.is_awake:
            self.state = state

    def _get_to_know(self, server: Server) -> None:
        """Begin to use a server."""
        self._forget()
        if server.data_parallel > 1 and not self.weight_sync.reaches_all:
            raise EngineError(
                f"the server at {server.client.url} has {server.data_parallel} copies of the weights; use engine.sync=disk"
            )
        if self.manager.url is not None and not self.weight_sync.replaces:
            self._check_release(server)
        self.known = server
        limits = [limit for limit in (self.context_length, server.context_length) if limit is not None]
        self.context_length = min(limits, default=None)

    def _check_release(self, server: Server) -> None:
        """Raise if a running server would lose the base of adapters, which nobody sends."""
        release = self.manager.release
        if WEIGHTS in TAGS[release] and not server.info.get("enable_weights_cpu_backup"):
            raise EngineError(
                f"engine.release={release} would have the server at {server.client.url} lose the weights that the adapters are for; set "
                "engine.release=cache, or start it with --enable-weights-cpu-backup"
            )

    def _check_weights(self, server: Server, version: int, autocast: Precision) -> None:
        """Compare the server's log-probs with the policy's on a short text."""
        ids = self._expected[0] if self._expected else self.probe_ids()
        body = {
            "input_ids": list(ids),
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        }
        if self.weight_sync.adapter is not None:
            body["lora_path"] = self.weight_sync.adapter
        answer = server.client.post("/generate", body)
        # the first token has no log-prob, since nothing is before it
        found = [float(entry[0]) for entry in answer["meta_info"]["input_token_logprobs"][1:]]
        wanted = self._expected[1] if self._expected else policy_logprobs(self.policy, ids, autocast)
        gap = compare_logprobs(found, wanted, self.tolerance)
        self._checked = True
        log.debug("weights %d: the server's log-probs are within %.2g of the trainer's", version, gap)

    def _forget(self) -> None:
        """Know nothing of the server; a detached session stays detached, since it cannot start another one."""
        with suppress(EngineError):
            self.weight_sync.forget()
        self.known = None
        self._held = None
        self._checked = False
        if self.state is not EngineState.DETACHED:
            self._enter(EngineState.AWAKE)


def weight_check_ids(tokenizer: Any, limit: int = 64) -> tuple[int, ...]:
    """Return the token ids of the text of the weight check, at least two.

    Args:
        tokenizer: Of the policy.
        limit: Largest number of ids.
    """
    ids = tuple(tokenizer.encode(_TEXT, add_special_tokens=False))[: max(limit, 2)]
    return ids if len(ids) > 1 else (0, 1)


def compare_logprobs(server: Sequence[float], trainer: Sequence[float], tolerance: float) -> float:
    """Return the largest difference between two lists of log-probs.

    Args:
        server: What the server gives the tokens.
        trainer: What the policy gives them.
        tolerance: Largest difference that is accepted.

    Raises:
        EngineError: They differ by more, or in length.

    >>> compare_logprobs([-1.0, -2.5], [-1.0, -2.25], tolerance=0.5)
    0.25
    """
    if len(server) != len(trainer):
        raise EngineError(f"the server scored {len(server)} tokens of the probe, expected {len(trainer)}")
    gap = max((abs(left - right) for left, right in zip(server, trainer)), default=0.0)
    # written so that NaN fails too
    if not gap <= tolerance:
        raise EngineError(
            f"the server's log-probs differ from the trainer's by {gap:.3g} on the probe, more than {tolerance:g}: it holds other weights, "
            "or computes in another precision (engine.server.dtype); engine.probe_tolerance sets what is accepted"
        )
    return gap
