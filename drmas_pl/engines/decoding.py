"""Prefill and decode one batch of requests with a Transformers causal language model.

Every distinct prompt is computed once; its samples share a row of the batch until they differ (:mod:`.branching`), and a row
whose samples have ended leaves the batch at once, so nothing is ever sampled after an end token.

Legend: S samples, R rows, P longest prompt, C columns, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drmas_pl.engines.branching import Ints, branch
from drmas_pl.engines.row_cache import Memory, RowCache
from drmas_pl.engines.sampling import draw, uniform
from drmas_pl.errors import EngineError
from drmas_pl.parsing import FinishReason
from drmas_pl.types import GenerationRequest

# a further forward pass costs about as much as this many padding tokens
_BUCKET_OVERHEAD = 128


class Sampled(Protocol):
    """Tells whether the newest of some sampled ids completes one of the stop texts."""

    def __call__(self, ids: Sequence[int], stop: Sequence[str], /) -> bool: ...


class Forward:
    """Next-token logits of a causal language model, with the arguments its Transformers version understands.

    Args:
        policy: A Transformers causal language model, possibly wrapped by PEFT.
    """

    def __init__(self, policy: Any) -> None:
        base = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        config = policy.config.get_text_config()
        names = inspect.signature(base.forward).parameters
        self.layers: int = config.num_hidden_layers
        self._policy = policy
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._extra = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
        windowed = getattr(config, "sliding_window", None) or set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
        # a ready-made mask spares Transformers from building one, but only plain SDPA attention takes it as it is
        self._ready_mask = config._attn_implementation == "sdpa" and not windowed

    def __call__(self, ids: Tensor, padding: Tensor | None, *, first_column: int, cache: RowCache) -> Tensor:
        """Return (R, V) logits after the last of ``ids`` (R, L), which start at ``first_column``.

        Args:
            ids: (R, L) token ids.
            padding: (R,) padding columns at the left of each row; None when no row has any.
            first_column: Column of the first id.
            cache: Holds the columns before and receives the new ones.
        """
        columns = torch.arange(first_column + ids.shape[1], device=ids.device)
        positions, mask = columns[None, first_column:], None
        if padding is not None:
            positions = (positions - padding[:, None]).clamp(min=0)
            mask = columns >= padding[:, None]
            mask = self._causal(mask, columns[first_column:]) if self._ready_mask else mask.long()
        output = self._policy(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **{self._cache_name: cache}, **self._extra
        )
        return output.logits[:, -1]

    def _causal(self, real: Tensor, queries: Tensor) -> Tensor:
        """Combine (R, C) real columns with causality to a (R, 1, L, C) mask; padding attends to itself, to stay finite."""
        if len(queries) == 1:
            return real[:, None, None, :]
        columns = torch.arange(real.shape[1], device=real.device)
        past, self_ = columns <= queries[:, None], columns == queries[:, None]
        return (real[:, None, None, :] & past) | self_


class DecodeBatch:
    """Generates a batch whose worst case fits into memory.

    Args:
        forward: The model.
        requests: At least one request.
        rooms: How many tokens each may sample.
        stop_token_ids: Ids that end a response.
        stop_reached: Recognises stop texts.
        device: Where the model is.
        memory: Holds keys and values; may be shared with later batches.
    """

    def __init__(
        self,
        forward: Forward,
        requests: Sequence[GenerationRequest],
        rooms: Sequence[int],
        *,
        stop_token_ids: frozenset[int],
        stop_reached: Callable[[Sequence[int], Sequence[str]], bool],
        device: torch.device,
        memory: Memory,
    ) -> None:
        self._forward, self._device, self._stop_reached = forward, device, stop_reached
        self._prompts = sorted(dict.fromkeys(request.prompt_ids for request in requests), key=len)
        self._width = len(self._prompts[-1])
        index = {prompt: row for row, prompt in enumerate(self._prompts)}
        # per live sample, in the order of the requests
        self._live = np.arange(len(requests))
        self._row: Ints = np.array([index[request.prompt_ids] for request in requests])
        self._padding: Ints = np.array([self._width - len(prompt) for prompt in self._prompts])
        self._room = np.array(rooms)
        self._seeds = torch.tensor([request.seed for request in requests], device=device)
        self._stop_ids = np.array(sorted(stop_token_ids), dtype=np.int64)
        self._stop_texts = {i: request.sampling.stop for i, request in enumerate(requests) if request.sampling.stop}
        settings = [(request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) for request in requests]
        self._settings = list(dict.fromkeys(settings))
        self._setting = np.array([self._settings.index(setting) for setting in settings])
        columns = self._width + max(rooms) - 1
        self._cache = RowCache(forward.layers, rows=len(requests), columns=columns, memory=memory)
        self.ids = np.zeros((len(requests), max(rooms)), dtype=np.int64)
        self.logprobs = np.zeros((len(requests), max(rooms)), dtype=np.float32)
        self.lengths = np.zeros(len(requests), dtype=np.int64)
        self.finish: list[FinishReason] = ["length"] * len(requests)

    def run(self) -> None:
        """Sample until every response has ended; results are in ``ids``, ``logprobs``, ``lengths`` and ``finish``."""
        logits = self._prefill()
        for step in range(self.ids.shape[1]):
            tokens = self._sample(logits, step)
            going = ~self._ended(tokens, step)
            if not going.any():
                return
            self._live = self._live[going]
            logits = self._advance(self._row[going], tokens[going], self._width + step)

    def _prefill(self) -> Tensor:
        """Return (R, V) logits after every distinct prompt."""
        parts = []
        for first, last in length_buckets([len(prompt) for prompt in self._prompts]):
            prompts = self._prompts[first:last]
            width = len(prompts[-1])
            ids = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt in prompts], device=self._device)
            padding = torch.tensor([width - len(prompt) for prompt in prompts], device=self._device)
            self._cache.open_prefill(first, last, start=self._width - width, stop=self._width)
            ragged = len(prompts[0]) < width
            parts.append(self._forward(ids, padding if ragged else None, first_column=0, cache=self._cache))
        return torch.cat(parts)

    def _sample(self, logits: Tensor, step: int) -> Ints:
        """Draw and record one token per live sample."""
        rows = torch.from_numpy(self._row).to(self._device)
        uniforms = uniform(self._seeds[torch.from_numpy(self._live).to(self._device)], step)
        setting = self._setting[self._live]
        tokens = np.empty(len(self._live), dtype=np.int64)
        logprobs = np.empty(len(self._live), dtype=np.float32)
        for number in np.unique(setting):
            chosen = np.flatnonzero(setting == number)
            at = slice(None) if len(chosen) == len(setting) else torch.from_numpy(chosen).to(self._device)
            temperature, top_p, top_k = self._settings[number]
            drawn, logp = draw(logits, uniforms[at], rows=rows[at], temperature=temperature, top_p=top_p, top_k=top_k)
            tokens[chosen], logprobs[chosen] = drawn.cpu().numpy(), logp.cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise EngineError(
                "the policy's logits are not finite, so nothing can be sampled; its weights are damaged, go back to a checkpoint"
            )
        self.ids[self._live, step], self.logprobs[self._live, step] = tokens, logprobs
        self.lengths[self._live] = step + 1
        return tokens

    def _ended(self, tokens: Ints, step: int) -> NDArray[np.bool_]:
        """Tell which live samples ended with the token just drawn, and note why."""
        stopped = np.isin(tokens, self._stop_ids)
        if self._stop_texts:
            for at, sample in enumerate(self._live.tolist()):
                if not stopped[at] and (texts := self._stop_texts.get(sample)):
                    stopped[at] = self._stop_reached(self.ids[sample, : step + 1].tolist(), texts)
        for sample in self._live[stopped].tolist():
            self.finish[sample] = "stop"
        return stopped | (self._room[self._live] == step + 1)

    def _advance(self, row: Ints, tokens: Ints, column: int) -> Tensor:
        """Append the live samples' tokens at ``column`` and return the logits after them."""
        plan = branch(row, tokens)
        if len(plan.source):
            source, target = (torch.from_numpy(rows).to(self._device) for rows in (plan.source, plan.target))
            self._cache.copy_rows(source, target, column)
        self._row, self._padding = plan.row, self._padding[plan.parent]
        self._cache.open_decode(len(plan.token), column)
        ids = torch.from_numpy(plan.token).to(self._device)[:, None]
        padding = torch.from_numpy(self._padding).to(self._device) if self._padding.any() else None
        return self._forward(ids, padding, first_column=column, cache=self._cache)


def length_buckets(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut ascending lengths into runs to be padded together, so that padding costs less than further forward passes.

    Args:
        lengths: Ascending prompt lengths, in tokens.

    Returns:
        (first, last) index pairs, last excluded.

    >>> length_buckets([10, 11, 11, 400, 401])
    [(0, 3), (3, 5)]
    """
    buckets, last = [], len(lengths)
    while last:
        first, waste = last - 1, 0
        while first and waste + lengths[last - 1] - lengths[first - 1] <= _BUCKET_OVERHEAD:
            first -= 1
            waste += lengths[last - 1] - lengths[first]
        buckets.append((first, last))
        last = first
    return buckets[::-1]
