"""The engine that generates with an sglang server.

Its states are those of :class:`drmas_pl.engines.sglang.session.EngineState`. A server that is gone is started again from the policy's
weights, which do not change while an engine is awake, and what it had not answered is asked again: with a seed per request the answers
are those it would have given.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from drmas_pl.chat import end_token_ids
from drmas_pl.engines.limits import remaining_tokens, usable_context
from drmas_pl.engines.served import ServedEngine
from drmas_pl.engines.sglang.client import RequestTimeout, ServerLost
from drmas_pl.engines.sglang.factory import (
    check_address,
    check_devices,
    find_manager,
    lora_settings,
    make_weight_sync,
)
from drmas_pl.engines.sglang.generate import abort_all, generate_all
from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.server_manager import Release
from drmas_pl.engines.sglang.session import TOLERANCES, EngineState, ServerSession
from drmas_pl.engines.sglang.settings import RESERVED_TOKENS, ServerSettings
from drmas_pl.engines.sglang.weight_sync.base import Sync
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.types import Completion, GenerationRequest

log = logging.getLogger(__name__)
T = TypeVar("T")


class SglangEngine(ServedEngine):
    """Generates with a server of its own, or with one that already runs.

    The server starts with the first rollout and ends with :meth:`close`, or at the latest with this process. Engines whose policies are
    adapters on one base have one server together, as far as their settings agree.

    Args:
        policy: The model that is trained.
        tokenizer: Its tokenizer.
        python: Interpreter of the environment in which sglang is installed.
        url: Address of a running server, instead of ``python``. It must serve this model to nobody else.
        sync: How new weights get there; see :mod:`drmas_pl.engines.sglang.weight_sync.base`.
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
        stop_token_ids: Ids that end a response; by default those of :func:`drmas_pl.chat.end_token_ids`.

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
        self.max_restarts = max_restarts
        self.stop_token_ids = frozenset(
            end_token_ids(policy, tokenizer) if stop_token_ids is None else stop_token_ids
        )
        if not self.stop_token_ids:
            raise ConfigError(
                "neither tokenizer nor generation config name an end token; pass stop_token_ids"
            )
        self._manager = find_manager(
            policy,
            tokenizer,
            python=python,
            url=url,
            settings=settings,
            folder=None if folder is None else Path(folder),
            release=release,
            client={"max_concurrent": max_concurrent, "timeout": request_timeout},
        )
        self.own_weights = self._manager.release == "nothing"
        self._weight_sync = make_weight_sync(sync, self._manager)
        self._vocabulary = int(policy.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        if probe_tolerance is None:
            probe_tolerance = TOLERANCES.get(self._manager.dtype, 1e-3)
        limits = (settings.context_length, usable_context(policy.config))
        known_limits = [limit - RESERVED_TOKENS for limit in limits if limit is not None]
        self._session = ServerSession(
            self._manager,
            self._weight_sync,
            policy=policy,
            tokenizer=tokenizer,
            tolerance=probe_tolerance,
            context_length=min(known_limits, default=None),
        )
        self.context_length = self._session.context_length
        self._thread: ThreadPoolExecutor | None = None
        self._begun: Future[list[Completion]] | None = None
        # an engine that nobody closes must not leave its server behind
        self._finalizer = weakref.finalize(self, self._manager.unregister, self._session)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Continue every prompt once; see :meth:`Engine.generate`.

        A request that the server refuses, or does not answer in time, comes back with finish reason ``abort``.
        """
        state = self._session.state
        if not state.is_awake:
            raise EngineError(f"the engine is {state.value}; call wake() before generate()")
        limits = [remaining_tokens(request, self.context_length) for request in requests]
        self._check_ids(requests)
        done: dict[int, Completion] = {}
        order = sorted(range(len(requests)), key=lambda i: (requests[i].order, i))
        if requests:
            self._persist(lambda: self._ask(requests, limits, [i for i in order if i not in done], done))
        return [done[i] for i in range(len(requests))]

    def begin(self, requests: Sequence[GenerationRequest]) -> Callable[[], list[Completion]]:
        """Begin to generate in a thread, so that servers of several groups work at a time; see :meth:`Engine.begin`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sglang")
        future = self._thread.submit(self.generate, requests)
        self._begun = future

        def finish() -> list[Completion]:
            try:
                return future.result()
            except BaseException:
                # Ctrl-C reaches this thread alone, and the other one must not go on waiting
                self._give_up(future)
                raise

        return finish

    def wake(self) -> None:
        """Start the server if none runs, else give it the memory of its weights back."""
        state = self._session.state
        if state is EngineState.CLOSED:
            raise EngineError("the engine is closed for good; build a new one")
        if state is EngineState.ASLEEP:
            try:
                self._persist(lambda: self._session.wake(self.weights_version))
            except BaseException:
                self._session.state = EngineState.ASLEEP
                raise

    def sync(self, version: int) -> None:
        """Bring the policy's weights to the server and compare log-probs; a sleeping engine does so when it is next used."""
        self.weights_version = version
        self._session.outdate()
        if self._session.state.is_awake:
            self._persist(self._prepare)

    def detach(self) -> None:
        """Have the server hold the newest weights, checked.

        A server that is lost after this cannot be started again until the next :meth:`sync`.
        """
        self._persist(self._prepare)
        self._session.detach()

    def sleep(self) -> None:
        """Have the server release what is configured."""
        if not self._session.state.is_awake:
            return
        server = self._manager.server
        try:
            self._session.sleep()
        except (ServerLost, RequestTimeout) as error:
            log.warning("the server is gone and will be started again when it is needed: %s", error)
            self._session.drop(server)

    def close(self) -> None:
        """Stop the server, if it is ours, and refuse to generate for good."""
        self._session.close()
        if self._thread is not None:
            if self._begun is not None:
                self._give_up(self._begun)
            self._thread.shutdown()
        if self._manager.server is not None:
            with suppress(EngineError):
                self._weight_sync.close()
        self._finalizer()

    def use_devices(self, devices: Sequence[str]) -> None:
        """Have the server see these GPUs alone; see :meth:`ServedEngine.use_devices`."""
        if self._manager.url is None and self._manager.device == "cuda" and devices:
            check_devices(self._manager.settings, devices)
            self._manager.devices = tuple(devices)

    def probe_ids(self) -> tuple[int, ...]:
        """Return the token ids that trainer and server both score; see :meth:`ServedEngine.probe_ids`."""
        return self._session.probe_ids()

    def take(self, weights: Mapping[str, Tensor], probe: tuple[int, ...], logprobs: Sequence[float]) -> None:
        """Start and update servers from these weights; see :meth:`ServedEngine.take`."""
        self._session.take(weights, probe, logprobs)

    def _give_up(self, future: Future[list[Completion]]) -> None:
        """Have the server end what it is still at work on."""
        if not future.done() and self._manager.server is not None:
            abort_all(self._manager.server)

    def _prepare(self) -> Server:
        """Return the server, with the current weights."""
        return self._session.prepare(self.weights_version, self.autocast)

    def _ask(
        self,
        requests: Sequence[GenerationRequest],
        limits: Sequence[int],
        chosen: list[int],
        done: dict[int, Completion],
    ) -> None:
        """Send the chosen requests and note every answer in ``done``.

        Raises:
            ServerLost: The server went away; what it had answered until then is noted.
        """
        answers = generate_all(
            self._prepare(),
            [requests[i] for i in chosen],
            [limits[i] for i in chosen],
            stop_token_ids=self.stop_token_ids,
            adapter=self._weight_sync.adapter,
            version=self.weights_version,
            named=self._weight_sync.replaces,
        )
        done.update({i: answer for i, answer in zip(chosen, answers) if isinstance(answer, Completion)})
        for answer in answers:
            if isinstance(answer, ServerLost):
                raise answer

    def _persist(self, action: Callable[[], T]) -> T:
        """Run an action, again with a new server whenever the old one was lost."""
        # a lost server is the only error that a new one can mend; everything else is the caller's
        for left in reversed(range(self.max_restarts + 1)):
            try:
                found = action()
                self.context_length = self._session.context_length
                return found
            except ServerLost as error:
                lost = self._session.known
                tail = "" if lost is None else lost.log_tail()
                self._session.drop(lost)
                if not left:
                    raise EngineError(
                        f"the server was lost {self.max_restarts + 1} times in a row: {error}; {tail}"
                    ) from error
                log.warning("the server was lost and is started again: %s", error)
        raise AssertionError("the last attempt returns or raises")

    def _check_ids(self, requests: Sequence[GenerationRequest]) -> None:
        """Refuse ids outside the vocabulary, with which a server would crash."""
        for request in requests:
            if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocabulary:
                worst = max(
                    request.prompt_ids, key=lambda token: token if token >= 0 else self._vocabulary - token
                )
                raise EngineError(
                    f"a prompt holds id {worst}, but the model's ids are 0 to {self._vocabulary - 1}; use the model's tokenizer"
                )
