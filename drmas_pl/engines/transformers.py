"""The default engine: samples in the training process, from the training weights themselves or from a copy of them.

Without a copy there is nothing to synchronise: what was just trained is what samples. Requests join what is running between two decode
steps and leave it as soon as they end; :mod:`drmas_pl.engines.decoding` has the running batch, this module decides who joins when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import RLock
from typing import Any, Final

import torch
from torch import nn

from drmas_pl.chat import end_token_ids
from drmas_pl.engines.base import Engine
from drmas_pl.engines.decode_check import check_architecture, make_runner
from drmas_pl.engines.decoding import Ended, RunningBatch
from drmas_pl.engines.limits import remaining_tokens, usable_context
from drmas_pl.engines.model_runner import ModelRunner
from drmas_pl.engines.samples import Submission
from drmas_pl.engines.stop_strings import StopStringMatcher
from drmas_pl.engines.weights_copy import WeightsCopy
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.kernels.blocks import BLOCK
from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.models.module_modes import evaluating
from drmas_pl.types import Completion, GenerationRequest

# A prefill costs about as much as a decode step however few prompts it has, so requests wait for others to join with: until they are this
# share of what is running, or have waited so many decode steps.
_JOINING_SHARE: Final = 8
_MAX_DELAY: Final = 8
# decode steps of one call of step()
_MAX_STEPS: Final = 8


class TransformersEngine(Engine):
    """Generates with a Transformers causal language model in this process.

    The policy is put into evaluation mode while it generates and left as it was found.

    Args:
        policy: The model that is trained; referenced, and copied with ``copy`` alone.
        tokenizer: Its tokenizer; decodes for stop texts and names the end token.
        max_batch_tokens: Bound on the tokens held in the key-value cache at once, in whole blocks of 32: distinct prompts, every sample's
            longest possible response, and stored prefixes. Requests wait, in their order, until there is room; one alone always has it.
        stop_token_ids: Ids that end a response; by default those of :func:`drmas_pl.chat.end_token_ids`.
        reuse_prefixes: Whether a prompt takes over keys and values where it begins like an earlier prompt with its response, running or
            stored, until :meth:`sync` or :meth:`sleep`. Stored ones give way to what runs, those first that were used longest ago.
            Saves most of the prefill when teams append to their prompts. Log-probs then agree with a fresh computation to float32
            rounding instead of bit for bit.
        copy: Whether to generate with a copy of the weights, renewed by :meth:`sync` alone, so that sampling and training may go on at the
            same time.
        device: Where the copy computes, such as ``cuda:1``; None takes the policy's device.

    Raises:
        ConfigError: Neither tokenizer nor model name an end token, ``max_batch_tokens`` is not positive, there is a ``device`` without a
            copy, the policy's weights cannot be copied, or its architecture cannot be decoded here.
    """

    def __init__(
        self,
        policy: nn.Module,
        tokenizer: Any,
        *,
        max_batch_tokens: int = 65536,
        stop_token_ids: Iterable[int] | None = None,
        reuse_prefixes: bool = True,
        copy: bool = False,
        device: str | None = None,
    ) -> None:
        if max_batch_tokens < 1:
            raise ConfigError(f"max_batch_tokens must be at least 1, got {max_batch_tokens}")
        if device is not None and not copy:
            raise ConfigError(
                f"engine.device={device} is where a copy of the weights computes; set engine.copy=true as well"
            )
        if copy and isinstance(policy, AdapterPolicy):
            raise ConfigError(
                "engine.copy=true would copy the base once for every adapter on it; use engine=sglang, or another sharing"
            )
        self._trained = policy
        self.tokenizer = tokenizer
        self.max_batch_tokens = max_batch_tokens
        self.stop_token_ids = frozenset(
            end_token_ids(policy, tokenizer) if stop_token_ids is None else stop_token_ids
        )
        if not self.stop_token_ids:
            raise ConfigError(
                "neither tokenizer nor generation config name an end token; pass stop_token_ids"
            )
        check_architecture(policy)
        self.context_length = usable_context(policy.config)
        self.own_weights = copy
        self._copy = WeightsCopy(policy, device) if copy else None
        self._stop_texts = StopStringMatcher(tokenizer)
        self.reuse_prefixes = reuse_prefixes
        # from any thread, not yet looked at; what waits, sorted
        self._arrived: deque[Submission] = deque()
        self._waiting: list[Submission] = []
        self._lock = RLock()
        self._delay = 0
        self._batch: RunningBatch | None = None
        self._runner: ModelRunner | None = None
        # of the weights that the runner and what is stored were made with
        self._state: Any = None
        self._awake = True
        if not copy and not is_sharded(policy):
            # found out now, and not with the first prompt: whether the policy can be decoded
            with evaluating(policy), torch.inference_mode():
                make_runner(policy)

    @property
    def policy(self) -> nn.Module:
        """What generates: the model that is trained, or its copy."""
        return self._trained if self._copy is None else self._copy.model

    @property
    def elsewhere(self) -> bool:
        """Whether it computes on another device than the trainer."""
        return self._copy is not None and not self._copy.beside_policy

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Begin to continue a prompt; see :meth:`Engine.submit`."""
        if not self._awake:
            raise EngineError("the engine is asleep; call wake() before generate()")
        future: Future[Completion] = Future()
        try:
            limit = remaining_tokens(request, self.context_length)
        except EngineError as error:
            future.set_exception(error)
            return future
        # what was sampled of the response before is a part of the prompt to everything but its position
        whole = replace(request, prompt_ids=(*request.prompt_ids, *request.sampled_ids))
        self._arrived.append(Submission(whole, limit, future))
        return future

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self._arrived or self._waiting or self._running)

    def begin_step(self) -> Callable[[], None]:
        """Return what admits requests and decodes until one of them ends, or a few steps; it computes when it is called."""
        return self._step

    def wake(self) -> None:
        """Allow generating; the weights are the trainer's and already there."""
        self._awake = True

    def sleep(self) -> None:
        """Refuse to generate and give the memory of the key-value cache back; a copy of the weights stays.

        Requests that are under way fail.
        """
        self._abort(EngineError("the engine went to sleep before the response ended"))
        self._awake = False
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def suspend(self) -> None:
        """Give back what waits and what runs; see :meth:`Engine.suspend`.

        The cache goes as well, so that nothing that is sampled later depends on what it held.
        """
        with self._lock:
            self._collect_arrived()
            unfinished = [] if self._batch is None else self._batch.unfinished()
            nothing = Completion((), (), "abort", self.weights_version)
            unfinished += [(waiting, nothing) for waiting in self._waiting]
            self._waiting = []
            self._delay = 0
            self._release()
            self._resolve(unfinished)

    def sync(self, version: int) -> None:
        """Note the version, and renew the copy if there is one; what was computed with the old weights is forgotten.

        Raises:
            EngineError: Requests are under way, whose next tokens would come from other weights.
        """
        with self._lock:
            self._collect_arrived()
            if not self.idle:
                raise EngineError(
                    f"sync() came while {len(self._waiting) + len(self._running)} requests were under way, whose next tokens would "
                    "come from other weights; call step() until the engine is idle, or cancel their futures"
                )
        super().sync(version)
        if self._copy is not None:
            self._copy.renew()
        self._forget()

    def detach(self) -> None:
        """Make the copy of the weights, unless there is one."""
        _ = self.policy

    def close(self) -> None:
        """Refuse to generate for good; requests that are under way fail."""
        self.sleep()

    @property
    def _running(self) -> list[Submission]:
        return [] if self._batch is None else self._batch.running

    def _step(self) -> None:
        with self._lock:
            self._collect_arrived()
            if self.idle:
                return
            try:
                with evaluating(self.policy), torch.inference_mode(), self.autocast():
                    self._refresh()
                    self._advance()
            except Exception as error:
                self._abort(error, running=True)
            except BaseException as error:
                # whoever interrupts wants nothing any more
                self._abort(EngineError(f"generating was interrupted by {type(error).__name__}"))
                raise
            self._rest()

    def _collect_arrived(self) -> None:
        """Sort what was submitted in, and let go of what was cancelled."""
        while self._arrived:
            self._waiting.append(self._arrived.popleft())
        self._waiting = [waiting for waiting in self._waiting if not waiting.given_up]
        # samples of a task beside each other, whatever the order of arrival: what is computed is then the same in every run
        self._waiting.sort(key=lambda waiting: waiting.request.place)
        if self._batch is not None:
            self._batch.drop(lambda submission: submission.given_up)

    def _advance(self) -> None:
        """Admit what waits and has room, and decode until a request ends or the next ones may join."""
        batch = self._batch
        assert batch is not None
        fitting = batch.fitting(self._waiting)
        if self._joins(fitting, len(batch)):
            joining = self._waiting[:fitting]
            del self._waiting[:fitting]
            self._delay = 0
            fitting = 0
            if self._resolve(self._admit(batch, joining)):
                return
        for _ in range(_MAX_STEPS):
            if not len(batch) or (fitting and self._delay >= _MAX_DELAY):
                return
            self._delay += 1 if fitting else 0
            if self._resolve(batch.decode()):
                return

    def _admit(self, batch: RunningBatch, joining: Sequence[Submission]) -> Sequence[Ended]:
        running = len(batch)
        try:
            return batch.admit(joining)
        except Exception as error:
            if len(batch) != running:
                # what is running is damaged as well
                raise
            _fail(joining, error)
            return ()

    def _joins(self, fitting: int, running: int) -> bool:
        """Tell whether so many requests shall be admitted now."""
        return fitting > 0 and (fitting * _JOINING_SHARE >= running or self._delay >= _MAX_DELAY)

    def _resolve(self, ended: Sequence[Ended]) -> bool:
        """Resolve the futures of what has ended; return whether there was any."""
        for submission, completion in ended:
            if not submission.future.set_running_or_notify_cancel():
                continue
            if completion is None:
                submission.future.set_exception(EngineError(_NOT_FINITE))
            else:
                submission.future.set_result(completion)
        return bool(ended)

    def _abort(self, error: Exception, *, running: bool = False) -> None:
        """Fail what is running, and unless only ``running``, what waits; the cache may hold anything, so it goes as well."""
        with self._lock:
            self._collect_arrived()
            failed = self._running
            if not running:
                failed = [*failed, *self._waiting]
                self._waiting = []
            self._release()
            _fail(failed, error)

    def _release(self) -> None:
        """Give up the cache with all that runs, and copies of the weights."""
        self._batch = None
        self._runner = None

    def _forget(self) -> None:
        """Give up what was computed with the old weights, and copies of them."""
        if self._batch is not None:
            self._batch.forget()
        self._runner = None

    def _rest(self) -> None:
        """Give up copies of weights that are kept only as long as something runs."""
        if self._runner is not None and not self._runner.fuses and self.idle:
            self._runner = None

    def _refresh(self) -> None:
        """Prepare the forward pass and the batch; forget what was computed with other weights.

        Raises:
            EngineError: The weights changed while requests were running.
        """
        state = weights_state(self.policy)
        if state != self._state:
            if self._running:
                raise EngineError(
                    f"the weights changed while {len(self._running)} requests were under way; call step() until the engine is idle first"
                )
            # the precision may be another one as well
            self._release()
            self._state = state
        if self._runner is None:
            self._runner = make_runner(self.policy)
        if self._batch is None:
            self._batch = RunningBatch(
                self._runner,
                stop_token_ids=self.stop_token_ids,
                stop_reached=self._stop_texts.reached,
                device=next(self.policy.parameters()).device,
                max_blocks=max(self.max_batch_tokens // BLOCK, 1),
                store=self.reuse_prefixes,
            )
        self._batch.runner = self._runner
        self._batch.weights_version = self.weights_version


_NOT_FINITE: Final = "the policy's logits are not finite, so nothing can be sampled; its weights are damaged, go back to a checkpoint"


def _fail(submissions: Iterable[Submission], error: Exception) -> None:
    for submission in submissions:
        if submission.future.set_running_or_notify_cancel():
            submission.future.set_exception(error)


def is_sharded(policy: nn.Module) -> bool:
    """Tell whether ranks hold shares of the weights, so that a forward pass needs all of them at the same time."""
    return any(hasattr(parameter, "_local_tensor") for parameter in policy.parameters())


def weights_state(policy: nn.Module) -> tuple[Any, ...]:
    """Return a value that changes when weights, the active adapter or the precision do.

    Optimizers change weights in place, which their version counters show.
    """
    local = (getattr(parameter, "_local_tensor", parameter) for parameter in policy.parameters())
    weights = tuple((tensor.data_ptr(), tensor._version) for tensor in local if not tensor.is_inference())
    autocast = tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )
    return weights, str(getattr(policy, "active_adapters", "")), autocast
