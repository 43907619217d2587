"""Prefill and decode one batch of requests with a Transformers causal language model.

Every distinct prompt is computed and stored once. Its samples share a row of the batch until they differ
(:mod:`.branching`), and a row whose samples have ended leaves the batch at once, so nothing is ever sampled after an end token.

Legend: S samples, R rows, P distinct prompts, W longest prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drmas_pl.engines.model_runner import ModelRunner
from drmas_pl.engines.sampling import draw, uniform
from drmas_pl.errors import EngineError
from drmas_pl.kernels.branching import Ints, branch
from drmas_pl.kernels.decode_attention import PromptRows, Span, rows_by_prompt
from drmas_pl.kernels.prefixes import columns_of, shared_prefixes
from drmas_pl.kernels.row_cache import BufferPool, RowCache
from drmas_pl.parsing import FinishReason
from drmas_pl.types import GenerationRequest

# a further forward pass costs about as much as computing this many padding tokens
_PASS_OVERHEAD = 128
# a further span of attention costs about as much as reading this many padding tokens
_SPAN_OVERHEAD_ON_CPU = 512
_SPAN_OVERHEAD_ON_ACCELERATORS = 65536
# prompts without live samples are forgotten once they are this share of all
_DEAD_SHARE = 0.25


class DecodeBatch:
    """Generates a batch whose worst case fits into memory.

    Args:
        runner: Computes the model's logits.
        requests: At least one request.
        max_tokens: How many tokens each may sample.
        stop_token_ids: Ids that end a response.
        stop_reached: Recognises stop texts.
        device: Where the model is.
        buffers: Keeps keys and values; may be shared with later batches.
        earlier: Batches of the same weights and buffers whose prompts these may continue.

    Attributes:
        prompts: Distinct prompts, by length.
        cache: Their keys and values.
        buffer_set: Number of the buffers that hold the prompts; different from those of the earlier batches.
        ids: (S, T) sampled ids; what lies beyond a sample's length is meaningless.
        logprobs: (S, T) their log-probabilities.
        lengths: (S,) number of sampled ids.
        finish: Why each sample ended.
    """

    def __init__(
        self,
        runner: ModelRunner,
        requests: Sequence[GenerationRequest],
        max_tokens: Sequence[int],
        *,
        stop_token_ids: frozenset[int],
        stop_reached: Callable[[Sequence[int], Sequence[str]], bool],
        device: torch.device,
        buffers: BufferPool,
        earlier: Sequence[DecodeBatch] = (),
    ) -> None:
        self._runner = runner
        self._device = device
        self._stop_reached = stop_reached
        self.prompts = sorted(dict.fromkeys(request.prompt_ids for request in requests), key=len)
        self._width = len(self.prompts[-1])
        index = {prompt: row for row, prompt in enumerate(self.prompts)}
        # per live sample, in the order of the requests
        self._live = np.arange(len(requests))
        self._row: Ints = np.array([index[request.prompt_ids] for request in requests])
        # per row its prompt, and per prompt its length
        self._prompt: Ints = np.arange(len(self.prompts))
        self._prompt_length: Ints = np.array([len(prompt) for prompt in self.prompts])
        self._spans = self._make_spans()
        self._max_tokens = np.array(max_tokens)
        self._seeds = torch.tensor([request.seed for request in requests], device=device)
        self._stop_ids = np.array(sorted(stop_token_ids), dtype=np.int64)
        self._stop_texts = {
            i: request.sampling.stop for i, request in enumerate(requests) if request.sampling.stop
        }
        settings = [
            (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k)
            for request in requests
        ]
        self._settings = list(dict.fromkeys(settings))
        self._setting = np.array([self._settings.index(setting) for setting in settings])
        self._earlier = tuple(earlier)
        self.buffer_set: int = min(set(range(len(earlier) + 1)) - {batch.buffer_set for batch in earlier})
        sizes = {
            "prompts": len(self.prompts),
            "width": self._width,
            "rows": len(requests),
            "length": max(max_tokens),
        }
        # processors would widen half precision anew in every step
        wide = torch.float32 if runner.splits_attention and device.type == "cpu" else None
        self.cache = RowCache(runner.layers, **sizes, buffers=buffers, buffer_set=self.buffer_set, dtype=wide)
        self.ids = np.zeros((len(requests), max(max_tokens)), dtype=np.int64)
        self.logprobs = np.zeros((len(requests), max(max_tokens)), dtype=np.float32)
        self.lengths = np.zeros(len(requests), dtype=np.int64)
        self.finish: list[FinishReason] = ["length"] * len(requests)

    def run(self) -> None:
        """Sample until every response has ended; results are in ``ids``, ``logprobs``, ``lengths`` and ``finish``."""
        logits = self._prefill()
        # a chain of batches would never be freed
        self._earlier = ()
        for step in range(self.ids.shape[1]):
            tokens = self._sample(logits, step)
            going = ~self._ended(tokens, step)
            if not going.any():
                return
            self._live = self._live[going]
            logits = self._advance(self._row[going], tokens[going], step)

    def _prefill(self) -> Tensor:
        """Return (P, V) logits after every distinct prompt."""
        missing = self._prompt_length - self._reuse_prefixes()
        order = np.argsort(missing, kind="stable")
        parts = []
        for first, last in length_buckets(missing[order].tolist(), _PASS_OVERHEAD):
            rows = order[first:last]
            lengths = self._prompt_length[rows]
            # rows are sorted by what is missing, so the last one misses most
            queries = int(missing[rows[-1]])
            columns = int(lengths.max())
            tails = [self.prompts[row][-queries:] for row in rows.tolist()]
            ids = np.array([(0,) * (queries - len(tail)) + tail for tail in tails])
            padding = self._tensor(columns - lengths) if lengths.min() < columns else None
            neighbours = bool((np.diff(rows) == 1).all())
            # a slice of the cache is written in place without an index
            chosen = slice(int(rows[0]), int(rows[-1]) + 1) if neighbours else self._tensor(rows)
            self.cache.open_prefill(chosen, columns=columns, queries=queries)
            parts.append(self._runner.prefill(self._tensor(ids), padding, columns=columns, cache=self.cache))
        # back into the order of the prompts
        return torch.cat(parts)[self._tensor(np.argsort(order))]

    def _reuse_prefixes(self) -> Ints:
        """Copy what earlier batches hold of these prompts; return how many tokens of each, (P,)."""
        prefixes = shared_prefixes(
            self.prompts, [prompt for batch in self._earlier for prompt in batch.prompts]
        )
        rows, positions = columns_of(prefixes)
        source = prefixes.source[rows]
        # prompts are padded on the left, here and there to different widths
        target = (self._width - self._prompt_length)[rows] + positions
        # number of the earlier batch's first prompt among those of all earlier batches
        first = 0
        for batch in self._earlier:
            here = (first <= source) & (source < first + len(batch.prompts))
            theirs = source[here] - first
            mine = rows[here]
            starts = np.array([batch.cache.width - len(prompt) for prompt in batch.prompts])
            self.cache.copy_prefixes(
                batch.cache,
                (self._tensor(theirs), self._tensor(mine)),
                (self._tensor(starts[theirs] + positions[here]), self._tensor(target[here])),
            )
            first += len(batch.prompts)
        return prefixes.length

    def _sample(self, logits: Tensor, step: int) -> Ints:
        """Draw and record one token per live sample."""
        rows = self._tensor(self._row)
        uniforms = uniform(self._seeds[self._tensor(self._live)], step)
        setting = self._setting[self._live]
        tokens = np.empty(len(self._live), dtype=np.int64)
        logprobs = np.empty(len(self._live), dtype=np.float32)
        for number in np.unique(setting):
            chosen = np.flatnonzero(setting == number)
            at = slice(None) if len(chosen) == len(setting) else self._tensor(chosen)
            temperature, top_p, top_k = self._settings[number]
            drawn, logp = draw(
                logits, uniforms[at], rows=rows[at], temperature=temperature, top_p=top_p, top_k=top_k
            )
            tokens[chosen] = drawn.cpu().numpy()
            logprobs[chosen] = logp.cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise EngineError(
                "the policy's logits are not finite, so nothing can be sampled; its weights are damaged, go back to a checkpoint"
            )
        self.ids[self._live, step] = tokens
        self.logprobs[self._live, step] = logprobs
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
        return stopped | (self._max_tokens[self._live] == step + 1)

    def _advance(self, row: Ints, tokens: Ints, step: int) -> Tensor:
        """Append the live samples' tokens as response column ``step`` and return the logits after them."""
        plan = branch(row, tokens)
        if len(plan.source):
            self.cache.copy_rows(self._tensor(plan.source), self._tensor(plan.target), step)
        self._row = plan.row
        self._prompt = self._prompt[plan.parent]
        self._forget_prompts()
        splits = self._runner.splits_attention
        self.cache.open_decode(self._tensor(self._prompt), step, joined=not splits)
        return self._runner.decode(
            self._tensor(plan.token),
            self._tensor(self._prompt_length[self._prompt] + step),
            cache=self.cache,
            prompt_rows=self._prompt_rows() if splits else None,
            mask=None if splits else self._joined_mask(step),
        )

    def _forget_prompts(self) -> None:
        """Drop prompts whose samples have all ended, when there are enough of them."""
        kept = np.unique(self._prompt)
        if len(kept) <= (1 - _DEAD_SHARE) * len(self._prompt_length):
            self.cache.keep_prompts(self._tensor(kept))
            self._prompt = np.searchsorted(kept, self._prompt)
            self._prompt_length = self._prompt_length[kept]
            self._spans = self._make_spans()

    def _prompt_rows(self) -> PromptRows:
        rows, place = rows_by_prompt(self._prompt, len(self._prompt_length))
        return PromptRows(self._tensor(rows), self._tensor(place), self._spans)

    def _make_spans(self) -> tuple[Span, ...]:
        real = self._real_columns()
        on_cpu = self._device.type == "cpu"
        overhead = _SPAN_OVERHEAD_ON_CPU if on_cpu else _SPAN_OVERHEAD_ON_ACCELERATORS
        spans = []
        for first, last in length_buckets(self._prompt_length.tolist(), overhead):
            start = self._width - int(self._prompt_length[last - 1])
            used = real[first:last, None, None, start:]
            bias = None if used.all() else self._tensor(np.where(used, 0, -np.inf).astype(np.float32))
            spans.append(Span(first, last, start, bias))
        return tuple(spans)

    def _joined_mask(self, step: int) -> Tensor | None:
        """Return the (R, W + step + 1) real columns of each row; None when all are."""
        real = self._real_columns()[self._prompt]
        if real.all():
            return None
        return self._tensor(np.pad(real, ((0, 0), (0, step + 1)), constant_values=True))

    def _real_columns(self) -> NDArray[np.bool_]:
        """Return (P, W), True where a prompt is not padding."""
        return np.arange(self._width) >= self._width - self._prompt_length[:, None]

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def length_buckets(lengths: Sequence[int], overhead: int) -> list[tuple[int, int]]:
    """Cut ascending lengths into runs to be padded together, so that padding costs less than further runs.

    Args:
        lengths: Ascending prompt lengths, in tokens.
        overhead: Cost of a run, in padding tokens.

    Returns:
        (first, last) index pairs, last excluded.

    >>> length_buckets([10, 11, 11, 400, 401], overhead=128)
    [(0, 3), (3, 5)]
    """
    buckets = []
    # from the longest to the shortest: what is padded is padded to the longest of its run
    last = len(lengths)
    while last:
        first = last - 1
        waste = 0
        while first and waste + lengths[last - 1] - lengths[first - 1] <= overhead:
            first -= 1
            waste += lengths[last - 1] - lengths[first]
        buckets.append((first, last))
        last = first
    return buckets[::-1]
