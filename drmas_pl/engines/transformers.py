"""The default engine: samples in the training process, from the training weights themselves or from a copy of them.

Without a copy there is nothing to synchronise: what was just trained is what samples. The decode loop is in
:mod:`drmas_pl.engines.decoding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from drmas_pl.chat import end_token_ids
from drmas_pl.engines.base import Engine
from drmas_pl.engines.decode_check import check_architecture, make_runner
from drmas_pl.engines.decoding import DecodeBatch
from drmas_pl.engines.limits import remaining_tokens, usable_context
from drmas_pl.engines.model_runner import ModelRunner
from drmas_pl.engines.stop_strings import StopStringMatcher
from drmas_pl.engines.weights_copy import WeightsCopy
from drmas_pl.errors import ConfigError, EngineError
from drmas_pl.kernels.row_cache import BufferPool
from drmas_pl.models.adapters import AdapterPolicy
from drmas_pl.models.module_modes import evaluating
from drmas_pl.types import Completion, GenerationRequest


class TransformersEngine(Engine):
    """Generates with a Transformers causal language model in this process.

    The policy is put into evaluation mode while it generates and left as it was found.

    Args:
        policy: The model that is trained; referenced, and copied with ``copy`` alone.
        tokenizer: Its tokenizer; decodes for stop texts and names the end token.
        max_batch_tokens: Bound on the tokens held in the key-value cache at once: distinct prompts × longest prompt plus
            samples × longest response. More requests than that are generated in several batches, with equal results. As much
            again may be held by prompts of the previous call with ``reuse_prefixes``.
        stop_token_ids: Ids that end a response; by default those of :func:`drmas_pl.chat.end_token_ids`.
        reuse_prefixes: Whether a prompt takes over keys and values from the previous call where it begins like one of its
            prompts, until :meth:`sync` or :meth:`sleep`. Saves most of the prefill when teams append to their prompts. Log-probs
            then agree with a fresh computation to float32 rounding instead of bit for bit.
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
        self._buffers = BufferPool()
        self._earlier: list[DecodeBatch] = []
        self._runner: ModelRunner | None = None
        # of the weights that the runner and the earlier batches were made with
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

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Continue every prompt once; see :meth:`Engine.generate`."""
        if not self._awake:
            raise EngineError("the engine is asleep; call wake() before generate()")
        limits = [remaining_tokens(request, self.context_length) for request in requests]
        # samples of a task beside each other, whatever the order of arrival: batches and their numbers are then the same in every run
        order = sorted(range(len(requests)), key=lambda i: (requests[i].order, i))
        completions: dict[int, Completion] = {}
        try:
            with evaluating(self.policy), torch.inference_mode(), self.autocast():
                runner = self._current_runner()
                earlier = self._earlier
                self._earlier = []
                for chunk in self._chunks(order, requests, limits):
                    batch = self._batch(
                        runner,
                        [requests[i] for i in chunk],
                        [limits[i] for i in chunk],
                        [*self._earlier, *earlier],
                    )
                    batch.run()
                    completions.update(zip(chunk, self._completions(batch)))
                    self._remember(batch)
        except BaseException:
            # what is left in the cache may be NaN
            self._release()
            raise
        return [completions[i] for i in range(len(requests))]

    def wake(self) -> None:
        """Allow generating; the weights are the trainer's and already there."""
        self._awake = True

    def sleep(self) -> None:
        """Refuse to generate and give the memory of the key-value cache back; a copy of the weights stays."""
        self._awake = False
        self._release()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def sync(self, version: int) -> None:
        """Note the version, and renew the copy if there is one; what was computed with the old weights is forgotten."""
        super().sync(version)
        if self._copy is not None:
            self._copy.renew()
        self._forget()

    def detach(self) -> None:
        """Make the copy of the weights, unless there is one."""
        _ = self.policy

    def close(self) -> None:
        """Refuse to generate for good."""
        self.sleep()

    def _release(self) -> None:
        self._forget()
        self._buffers.release()

    def _forget(self) -> None:
        """Give up what was computed with the old weights, and copies of them."""
        self._earlier = []
        self._runner = None

    def _current_runner(self) -> ModelRunner:
        """Return the forward pass; forget what the last call computed if the weights are other ones now."""
        state = weights_state(self.policy)
        if state != self._state:
            self._forget()
            self._state = state
        # a fused one is kept for its copies of the weights; the others keep copies for one call alone
        if self._runner is None or not self._runner.fuses:
            self._runner = make_runner(self.policy)
        return self._runner

    def _remember(self, batch: DecodeBatch) -> None:
        """Keep a batch for later prompts to continue, and as many of its predecessors as the bound on tokens allows."""
        if not self.reuse_prefixes:
            return
        self._earlier.insert(0, batch)
        while (
            len(self._earlier) > 1
            and sum(kept.cache.prompt_cells for kept in self._earlier) > self.max_batch_tokens
        ):
            self._earlier.pop()

    def _chunks(
        self, order: list[int], requests: Sequence[GenerationRequest], limits: Sequence[int]
    ) -> Iterator[list[int]]:
        """Cut the sorted requests so that the key-value cache of each piece stays within the bound.

        It holds a rectangle of distinct prompts and a rectangle of responses.
        """
        chunk: list[int] = []
        prompts: set[tuple[int, ...]] = set()
        for i in order:
            wider = prompts | {requests[i].prompt_ids}
            longest = max(limits[j] for j in (*chunk, i))
            cells = len(wider) * max(map(len, wider)) + (len(chunk) + 1) * longest
            if chunk and cells > self.max_batch_tokens:
                yield chunk
                chunk = []
                wider = {requests[i].prompt_ids}
            chunk.append(i)
            prompts = wider
        if chunk:
            yield chunk

    def _batch(
        self,
        runner: ModelRunner,
        requests: Sequence[GenerationRequest],
        limits: Sequence[int],
        earlier: Sequence[DecodeBatch],
    ) -> DecodeBatch:
        return DecodeBatch(
            runner,
            requests,
            limits,
            stop_token_ids=self.stop_token_ids,
            stop_reached=self._stop_texts.reached,
            device=next(self.policy.parameters()).device,
            buffers=self._buffers,
            earlier=earlier,
        )

    def _completions(self, batch: DecodeBatch) -> list[Completion]:
        rows = zip(batch.ids.tolist(), batch.logprobs.tolist(), batch.lengths.tolist(), batch.finish)
        return [
            Completion(tuple(ids[:length]), tuple(logprobs[:length]), finish, self.weights_version)
            for ids, logprobs, length, finish in rows
        ]


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
