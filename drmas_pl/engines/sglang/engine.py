"""The engine that generates with an sglang server.

Its states are those of :class:`drmas_pl.engines.sglang.session.EngineState`. Requests are sent by a
:class:`~drmas_pl.engines.sglang.dispatcher.RequestDispatcher`. A server that is gone is started again from the policy's weights, which do
not change while an engine is awake.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from drmas_pl.chat import end_token_ids
from drmas_pl.engines.limits import remaining_tokens, usable_context
from drmas_pl.engines.served import ServedEngine
from drmas_pl.engines.sglang.client import RequestTimeout, ServerLost
from drmas_pl.engines.sglang.dispatcher import RequestDispatcher
from drmas_pl.engines.sglang.factory import (
    check_address,
    check_devices,
    find_manager,
    lora_settings,
    make_weight_sync,
)
from drmas_pl.engines.sglang.generate import SamplingTarget
from drmas_pl.engines.sglang.server import Server
from drmas_pl.engines.sglang.server_manager import Release
from drmas_pl.engines.sglang.session import TOLERANCES, EngineState, ServerSession
from drmas_pl.engines.sglang.settings import RESERVED_TOKENS, ServerSettings
from drmas_pl.engines.sglang.weight_sync.base import Sync
from drmas_pl.engines.stop_strings import StopStringMatcher
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.types import Completion, GenerationRequest

log = logging.getLogger(__name__)


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
            client={"timeout": request_timeout},
        )
        self.own_weights = self._manager.release == "nothing"
        self._weight_sync = make_weight_sync(sync, self._manager)
        self._stop_texts = StopStringMatcher(tokenizer)
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
        self._dispatcher = RequestDispatcher(self, max_concurrent=max_concurrent, max_restarts=max_restarts)
        # an engine that nobody closes must not leave its server behind
        self._finalizer = weakref.finalize(self, self._manager.unregister, self._session)

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Begin to continue a prompt; see :meth:`Engine.submit`.

        A request that the server refuses, or does not answer in time, comes back with finish reason ``abort``. The future stays pending
        while the server is at work, so that cancelling it ends the request there.
        """
        state = self._session.state
        if not state.is_awake:
            raise EngineError(f"the engine is {state.value}; call wake() before submit()")
        try:
            max_tokens = remaining_tokens(request, self.context_length)
            self._check_ids(request)
        except EngineError as error:
            refused: Future[Completion] = Future()
            refused.set_exception(error)
            return refused
        return self._dispatcher.submit(request, max_tokens)

    def suspend(self) -> None:
        """Have the server end every request that is under way; see :meth:`Engine.suspend`."""
        self._dispatcher.abort()

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
        """Bring the policy's weights to the server and compare log-probs; a sleeping engine does so when it is next used.

        Waits until what is under way is answered, with the weights that it began with; what is submitted meanwhile gets the new ones.
        """
        with self._dispatcher.held():
            self.weights_version = version
            self._session.outdate()
            if self._session.state.is_awake:
                self._persist(self._prepare)

    def detach(self) -> None:
        """Have the server hold the newest weights, checked; what is under way goes on.

        A server that is lost after this cannot be started again until the next :meth:`sync`; what it had not answered fails with a
        :class:`~drmas_pl.errors.ServerNotReplaced`.
        """
        self._persist(self._prepare)
        self._session.detach()

    def sleep(self) -> None:
        """Abort what is under way, as :meth:`suspend` does, and have the server release what is configured."""
        if not self._session.state.is_awake:
            return
        with self._dispatcher.aborted():
            server = self._manager.server
            try:
                self._session.sleep()
            except (ServerLost, RequestTimeout) as error:
                log.warning("the server is gone and will be started again when it is needed: %s", error)
                self._session.drop(server)

    def close(self) -> None:
        """Abort what is under way, stop the server, if it is ours, and refuse to generate for good."""
        self._session.close()
        self._dispatcher.close()
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

    def find_target(self) -> SamplingTarget | None:
        """Return where requests can be sent at once; see :class:`~drmas_pl.engines.sglang.dispatcher.ServerUser`."""
        server = self._session.ready_server
        if server is None:
            return None
        return SamplingTarget(
            server,
            stop_token_ids=self.stop_token_ids,
            adapter=self._weight_sync.adapter,
            version=self.weights_version,
            named=self._weight_sync.replaces,
            stop_texts=self._stop_texts,
        )

    def prepare_server(self, lost: Server | None, losses: int) -> None:
        """Make a server ready, in the place of one that was lost; see :class:`~drmas_pl.engines.sglang.dispatcher.ServerUser`."""
        state = self._session.state
        if not state.is_awake:
            raise EngineError(f"the engine is {state.value}; call wake() before submit()")
        with self._manager.lock:
            if lost is not None and lost is self._session.known:
                log.warning("the server was lost and is started again; %s", lost.exit_report())
                self._session.drop(lost)
        self._persist(self._prepare, losses)

    def _prepare(self) -> Server:
        """Return the server, with the current weights."""
        return self._session.prepare(self.weights_version, self.autocast)

    def _persist(self, action: Callable[[], object], losses: int = 0) -> None:
        """Run an action, again with a new server whenever the old one was lost; ``losses`` were lost in a row before."""
        # a lost server is the only error that a new one can mend; everything else is the caller's
        for lost_before in range(losses, self.max_restarts + 1):
            # whoever else notices the loss must find the new server
            with self._manager.lock:
                try:
                    action()
                except ServerLost as error:
                    self._replace(error, last=lost_before == self.max_restarts)
                else:
                    self.context_length = self._session.context_length
                    return

    def _replace(self, error: ServerLost, *, last: bool) -> None:
        """Give the lost server up.

        Raises:
            EngineError: It was the last of those that may be lost in a row.
        """
        lost = self._session.known
        tail = "" if lost is None else lost.log_tail()
        self._session.drop(lost)
        if last:
            raise EngineError(
                f"the server was lost {self.max_restarts + 1} times in a row: {error}; {tail}"
            ) from error
        log.warning("the server was lost and is started again: %s", error)

    def _check_ids(self, request: GenerationRequest) -> None:
        """Refuse ids outside the vocabulary, with which a server would crash."""
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocabulary:
            worst = max(
                request.prompt_ids, key=lambda token: token if token >= 0 else self._vocabulary - token
            )
            raise EngineError(
                f"a prompt holds id {worst}, but the model's ids are 0 to {self._vocabulary - 1}; use the model's tokenizer"
            )
