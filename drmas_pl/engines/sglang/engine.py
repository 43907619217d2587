"""The engine that generates with an sglang server.

Its states, entered in this order only::

    ASLEEP ──wake()──▶ AWAKE (the server runs) ──first use──▶ READY (weights current and probed) ──sleep()──▶ ASLEEP

A server that is gone is started again from the policy's weights, which do not change while an engine is awake, and what it had not
answered is asked again: with a seed per request the answers are those it would have given.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from drmas_pl.engines.base import Engine
from drmas_pl.engines.limits import response_room
from drmas_pl.engines.sglang.asking import abort_all, ask
from drmas_pl.engines.sglang.assembly import check_address, lora_settings, make_transport
from drmas_pl.engines.sglang.client import RequestTimeout, ServerLost
from drmas_pl.engines.sglang.folders import AdapterTransport
from drmas_pl.engines.sglang.keeper import Keeper
from drmas_pl.engines.sglang.probe import TOLERANCES, check_probe, policy_logprobs, probe_ids
from drmas_pl.engines.sglang.protocol import probe_body, read_probe
from drmas_pl.engines.sglang.residency import WEIGHTS, Release, Residency
from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.settings import ServerSettings
from drmas_pl.engines.sglang.transport import Sync
from drmas_pl.engines.sglang.versions import RESERVED_TOKENS
from drmas_pl.engines.transformers import end_token_ids
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.types import Completion, GenerationRequest

log = logging.getLogger(__name__)
T = TypeVar("T")


class Stage(Enum):
    """What the engine may do."""

    ASLEEP = "asleep"
    AWAKE = "awake"
    READY = "ready"
    CLOSED = "closed"


class SglangEngine(Engine):
    """Generates with a server of its own, or with one that already runs.

    The server starts with the first rollout and ends with :meth:`close`, or at the latest with this process.

    Args:
        policy: The model that is trained.
        tokenizer: Its tokenizer.
        python: Interpreter of the environment in which sglang is installed.
        url: Address of a running server, instead of ``python``. It must serve this model to nobody else.
        sync: How new weights get there; see :mod:`drmas_pl.engines.sglang.transport`.
        release: What the server gives back while others train: ``nothing``, the ``cache``, or ``all`` (cache and weights). None
            releases all on a GPU of ours and nothing elsewhere.
        server: How the server is started.
        max_concurrent: Largest number of requests under way at a time.
        request_timeout: Seconds after which a request is aborted; its trajectory fails.
        max_restarts: How often in a row a lost server is replaced before the error is raised.
        probe_tolerance: Largest difference between the server's and the policy's log-probs after new weights; None fits the
            server's data type.
        folder: Where weights on their way and the server's output are written; servers elsewhere must see the same path. None takes
            a temporary folder.
        stop_token_ids: Ids that end a response; by default the tokenizer's end token and those of the generation config.

    Raises:
        ConfigError: The settings contradict each other, or the interpreter is not there.
    """

    def __init__(
        self,
        policy: nn.Module,
        tokenizer: Any,
        *,
        python: str | None = None,
        url: str | None = None,
        sync: Sync = "disk",
        release: Release | None = None,
        server: ServerSettings | None = None,
        max_concurrent: int = 256,
        request_timeout: float = 600.0,
        max_restarts: int = 2,
        probe_tolerance: float | None = None,
        folder: str | None = None,
        stop_token_ids: Iterable[int] | None = None,
    ) -> None:
        check_address(python, url, max_concurrent=max_concurrent, max_restarts=max_restarts)
        settings = lora_settings(policy, server or ServerSettings())
        self.policy, self.tokenizer, self.max_restarts = policy, tokenizer, max_restarts
        self.stop_token_ids = frozenset(end_token_ids(policy, tokenizer) if stop_token_ids is None else stop_token_ids)
        if not self.stop_token_ids:
            raise ConfigError("neither tokenizer nor generation config name an end token; pass stop_token_ids")
        self._keeper = Keeper(
            policy,
            tokenizer,
            python=python,
            url=url,
            settings=settings,
            folder=None if folder is None else Path(folder),
            memory_saver=False,
            client={"max_concurrent": max_concurrent, "timeout": request_timeout},
        )
        on_gpu = url is None and self._keeper.device == "cuda"
        release = release or ("all" if on_gpu else "nothing")
        self._keeper.memory_saver = on_gpu and release != "nothing"
        self._residency = Residency(release, measured=on_gpu)
        self._keeps_weights = settings.weights_backup and self._keeper.memory_saver
        self._transport = make_transport(sync, self._keeper)
        self._tolerance = TOLERANCES.get(self._keeper.dtype, 1e-3) if probe_tolerance is None else probe_tolerance
        self._vocabulary = int(policy.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        limits = (settings.context_length, getattr(policy.config.get_text_config(), "max_position_embeddings", None))  # type: ignore[union-attr, operator]
        self.context_length = min((limit - RESERVED_TOKENS for limit in limits if limit is not None), default=None)
        self._stage = Stage.ASLEEP
        # version of the weights that the server is known to hold; None while it is unknown
        self._held: int | None = None
        self._untouched = self._probed = False
        self._thread: ThreadPoolExecutor | None = None
        self._finalizer = weakref.finalize(self, self._keeper.close)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Continue every prompt once; see :meth:`Engine.generate`.

        A request that the server refuses, or does not answer in time, comes back with finish reason ``abort``.
        """
        if self._stage not in (Stage.AWAKE, Stage.READY):
            raise EngineError(f"the engine is {self._stage.value}; call wake() before generate()")
        rooms = [response_room(request, self.context_length) for request in requests]
        self._check_ids(requests)
        done: dict[int, Completion] = {}
        order = sorted(range(len(requests)), key=lambda i: (requests[i].order, i))
        if requests:
            self._persist(lambda: self._ask(requests, rooms, [i for i in order if i not in done], done))
        return [done[i] for i in range(len(requests))]

    def begin(self, requests: Sequence[GenerationRequest]) -> Callable[[], list[Completion]]:
        """Begin to generate in a thread, so that servers of several groups work at a time; see :meth:`Engine.begin`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sglang")
        future = self._thread.submit(self.generate, requests)

        def finish() -> list[Completion]:
            try:
                return future.result()
            except BaseException:
                # Ctrl-C reaches this thread alone, and the other one must not go on waiting
                if not future.done() and self._keeper.server is not None:
                    abort_all(self._keeper.server)
                raise

        return finish

    def wake(self) -> None:
        """Start the server if none runs, else give it the memory of its weights back."""
        if self._stage is Stage.CLOSED:
            raise EngineError("the engine is closed for good; build a new one")
        if self._stage is Stage.ASLEEP:
            self._stage = Stage.AWAKE
            try:
                self._persist(lambda: self._residency.resume_weights(self._server().client))
            except BaseException:
                self._stage = Stage.ASLEEP
                raise

    def sync(self, version: int) -> None:
        """Bring the policy's weights to the server and compare log-probs; a sleeping engine does so when it is next used."""
        self.weights_version = version
        if self._stage not in (Stage.AWAKE, Stage.READY):
            self._held = None
            return
        if not self._untouched:
            self._held = None
        self._persist(self._prepare)

    def sleep(self) -> None:
        """Have the server release what is configured."""
        if self._stage not in (Stage.AWAKE, Stage.READY):
            return
        self._stage, self._untouched = Stage.ASLEEP, False
        server = self._keeper.server
        if server is None:
            return
        try:
            self._residency.sleep(server.client, next(self.policy.parameters()).device)
        except (ServerLost, RequestTimeout) as error:
            log.warning("the server is gone and will be started again when it is needed: %s", error)
            self._drop()
        if WEIGHTS in self._residency.released and not self._keeps_weights:
            self._held = None

    def close(self) -> None:
        """Stop the server, if it is ours, and refuse to generate for good."""
        self._stage = Stage.CLOSED
        if self._thread is not None:
            self._thread.shutdown()
        if self._keeper.server is not None:
            with suppress(EngineError):
                self._transport.close()
        self._finalizer()

    def _server(self) -> Server:
        """Return the running server, started if need be."""
        server = self._keeper.server
        if server is not None and not server.alive:
            log.warning("the server has ended while nobody used it; %s", server.state())
            self._drop()
            server = None
        if server is None:
            server = self._keeper.start(self.weights_version)
            own = self._keeper.url is None and not isinstance(self._transport, AdapterTransport)
            self._held, self._untouched, self._probed = (self.weights_version, True, False) if own else (None, False, False)
            if server.data_parallel > 1 and not self._transport.reaches_all:
                raise EngineError(
                    f"the server at {server.client.url} has {server.data_parallel} copies of the weights; use engine.sync=disk"
                )
            limits = [limit for limit in (self.context_length, server.context_length) if limit is not None]
            self.context_length = min(limits, default=None)
        return server

    def _prepare(self) -> None:
        """Make sure that the server holds the current weights, all its memory, and gives the policy's log-probs."""
        server = self._server()
        if self._stage is Stage.READY and self._held == self.weights_version:
            return
        self._residency.resume_weights(server.client)
        if self._untouched:
            # it was just started from these very weights, which have a new name at most
            server.client.post("/update_weight_version", {"new_version": str(self.weights_version), "abort_all_requests": False})
        elif self._held != self.weights_version:
            self._residency.pause(server.client)
            self._transport.push(server, self.policy, self.weights_version)
            self._probed = False
        self._held, self._untouched = self.weights_version, False
        self._residency.resume_cache(server.client)
        if not self._probed:
            self._probe(server)
        self._stage = Stage.READY

    def _probe(self, server: Server) -> None:
        """Compare the server's log-probs with the policy's on a short text."""
        ids = probe_ids(self.tokenizer, limit=min(64, (self.context_length or 64) - 1))
        found = read_probe(server.client.post("/generate", probe_body(ids, adapter=self._transport.adapter)))
        gap = check_probe(found, policy_logprobs(self.policy, ids, self.autocast), self._tolerance)
        self._probed = True
        log.debug("weights %d: the server's log-probs are within %.2g of the trainer's", self.weights_version, gap)

    def _ask(self, requests: Sequence[GenerationRequest], rooms: Sequence[int], chosen: list[int], done: dict[int, Completion]) -> None:
        """Send the chosen requests and note every answer in ``done``.

        Raises:
            ServerLost: The server went away; what it had answered until then is noted.
        """
        self._prepare()
        answers = ask(
            self._server(),
            [requests[i] for i in chosen],
            [rooms[i] for i in chosen],
            stop_token_ids=self.stop_token_ids,
            adapter=self._transport.adapter,
            version=self.weights_version,
        )
        done.update({i: answer for i, answer in zip(chosen, answers) if isinstance(answer, Completion)})
        for answer in answers:
            if isinstance(answer, ServerLost):
                raise answer

    def _persist(self, action: Callable[[], T]) -> T:
        """Run an action, again with a new server whenever the old one was lost."""
        for left in reversed(range(self.max_restarts + 1)):
            try:
                return action()
            except ServerLost as error:
                server = self._keeper.server
                words = "" if server is None else server.last_words()
                self._drop()
                if not left:
                    raise EngineError(f"the server was lost {self.max_restarts + 1} times in a row: {error}; {words}") from error
                log.warning("the server was lost and is started again: %s", error)
        raise AssertionError("the last attempt returns or raises")

    def _drop(self) -> None:
        """Forget the server and everything that is known of it."""
        with suppress(EngineError):
            self._transport.forget()
        self._keeper.drop()
        self._residency.forget()
        self._held, self._untouched, self._probed = None, False, False
        if self._stage is Stage.READY:
            self._stage = Stage.AWAKE

    def _check_ids(self, requests: Sequence[GenerationRequest]) -> None:
        """Refuse ids outside the vocabulary, with which a server would crash."""
        for request in requests:
            if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocabulary:
                worst = max(request.prompt_ids, key=lambda token: token if token >= 0 else self._vocabulary - token)
                raise EngineError(
                    f"a prompt holds id {worst}, but the model's ids are 0 to {self._vocabulary - 1}; use the model's tokenizer"
                )
