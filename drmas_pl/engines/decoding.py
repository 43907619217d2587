"""The running batch: prefill what joins, decode a token of every row, let go of what has ended.

Every distinct prompt of what joins is computed once, and what a prompt shares with stored prefixes or with rows that are running is not
computed at all. Samples of a prompt share a row until they differ (:mod:`drmas_pl.kernels.branching`). Rows of any age stand beside each
other; one whose samples have ended leaves at once, so that nothing is ever sampled after an end token.

Legend: S samples, R rows, P distinct prompts of what joins, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from drmas_pl.engines.model_runner import ModelRunner
from drmas_pl.engines.samples import Flags, Samples, Submission
from drmas_pl.engines.sampling import draw
from drmas_pl.kernels.block_rows import BlockRows, Rows
from drmas_pl.kernels.branching import Ints, branch
from drmas_pl.kernels.paged_cache import PagedCache
from drmas_pl.kernels.prefixes import Prompt
from drmas_pl.parsing import FinishReason
from drmas_pl.types import Completion

# a request, and its completion; none when its logits were not finite, so that nothing could be sampled
Ended = tuple[Submission, Completion | None]
# a further forward pass costs about as much as computing this many padding tokens
_PASS_OVERHEAD = 128


class RunningBatch:
    """Requests that are being continued.

    Args:
        runner: Computes the model's logits; may be replaced by another one of equal weights.
        stop_token_ids: Ids that end a response.
        stop_reached: Recognises stop texts.
        device: Where the model is.
        max_blocks: Bound on the blocks in use, by rows and stored prefixes; exceeded only by what is admitted alone.
        store: Whether prompts and responses stay stored, so that later prompts can continue them.

    Attributes:
        weights_version: Stamped on every completion.
        prompt_tokens: Prompt tokens computed so far.
        reserved: Blocks that what is running may need in all.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        stop_token_ids: frozenset[int],
        stop_reached: Callable[[Sequence[int], Sequence[str]], bool],
        device: torch.device,
        max_blocks: int,
        store: bool,
    ) -> None:
        self.runner = runner
        self.weights_version = 0
        self.prompt_tokens = 0
        self.reserved = 0
        self._device = device
        self._max_blocks = max_blocks
        self._store = store
        # processors would widen half precision anew in every step
        wide = torch.float32 if runner.splits_attention and device.type == "cpu" else None
        self._memory = BlockRows(PagedCache(runner.layers, dtype=wide), device=device, max_blocks=max_blocks)
        self._samples = Samples(stop_token_ids, stop_reached, device)
        # row and group of each live sample; those of one prompt that were admitted at once are a group
        self._row: Ints = np.zeros(0, np.int64)
        self._group: Ints = np.zeros(0, np.int64)
        self._groups = 0
        # token that comes next, per row
        self._token: Ints = np.zeros(0, np.int64)

    @property
    def running(self) -> list[Submission]:
        """What is running."""
        return self._samples.submissions

    def __len__(self) -> int:
        """Return S."""
        return len(self._row)

    @property
    def holds_memory(self) -> bool:
        """Whether there is memory for keys and values."""
        return self._memory.cache.holds_memory

    def fitting(self, waiting: Sequence[Submission]) -> int:
        """Return how many of those that wait, from the first on, may be admitted now; at least one when nothing is running."""
        blocks = self.reserved
        prompts: set[Prompt] = set()
        for number, submission in enumerate(waiting):
            blocks += submission.own_blocks
            if submission.request.prompt_ids not in prompts:
                prompts.add(submission.request.prompt_ids)
                blocks += submission.prompt_blocks
            if blocks > self._max_blocks and (len(self) or number):
                return number
        return len(waiting)

    def admit(self, submissions: Sequence[Submission]) -> list[Ended]:
        """Compute the prompts and sample the first token of each request.

        Args:
            submissions: At least one.

        Returns:
            Requests that have ended already.
        """
        prompts = sorted(dict.fromkeys(submission.request.prompt_ids for submission in submissions), key=len)
        number = {prompt: at for at, prompt in enumerate(prompts)}
        row = np.array([number[submission.request.prompt_ids] for submission in submissions])
        first_row = len(self._token)
        first = len(self)
        self._group = np.concatenate([self._group, row + self._groups])
        self._groups += len(prompts)
        self._samples.add(submissions)
        self._row = np.concatenate([self._row, row + first_row])
        self._count_reserved()
        rows, known = self._memory.make(prompts, reserved=self.reserved)
        self._memory.add(rows)
        self._token = np.concatenate([self._token, np.zeros(len(prompts), np.int64)])
        try:
            logits = self._prefill(prompts, rows, rows.length - known)
        except Exception:
            joined = set(map(id, submissions))
            self.drop(lambda submission: id(submission) in joined)
            raise
        if self._store:
            for at, prompt in enumerate(prompts):
                self._memory.store(prompt, rows, at)
        return self._sample(logits, first, first_row)

    def decode(self) -> list[Ended]:
        """Sample one more token of every running request.

        Returns:
            Requests that have ended with it.
        """
        positions = self._memory.rows.length
        self._memory.grow()
        splits = self.runner.splits_attention
        logits = self.runner.decode(
            self._tensor(self._token),
            self._tensor(positions),
            cache=self._memory.cache,
            plan=self._memory.open_decode() if splits else None,
            mask=None if splits else self._memory.open_joined(),
        )
        return self._sample(logits, 0, 0)

    def unfinished(self) -> list[Ended]:
        """Return what has been sampled of every running request; the batch is of no use afterwards."""
        return [
            (self._samples.submission(slot), self._completion(slot, "abort"))
            for slot in self._samples.slot.tolist()
        ]

    def drop(self, given_up: Callable[[Submission], bool]) -> None:
        """Let go of requests, those that ``given_up`` tells."""
        going = np.array([not given_up(submission) for submission in self.running], bool)
        if going.all():
            return
        kept, row = np.unique(self._row[going], return_inverse=True)
        self._memory.keep(kept)
        self._token = self._token[kept]
        self._let_go(going, row)

    def forget(self) -> None:
        """Forget stored prefixes, whose keys and values are those of other weights."""
        self._memory.forget()

    def _prefill(self, prompts: Sequence[Prompt], rows: Rows, missing: Ints) -> Tensor:
        """Compute the last ``missing`` tokens of each prompt and return (P, V) logits after them."""
        lengths = rows.length
        self.prompt_tokens += int(missing.sum())
        order = np.argsort(missing, kind="stable")
        parts = []
        for first, last in length_buckets(missing[order].tolist(), _PASS_OVERHEAD):
            chosen = order[first:last]
            # rows are sorted by what is missing, so the last one misses most
            queries = int(missing[chosen[-1]])
            columns = int(lengths[chosen].max())
            self._memory.open_prefill(rows.take(chosen), missing[chosen], queries=queries)
            tails = [prompts[row][-queries:] for row in chosen.tolist()]
            ids = np.array([(0,) * (queries - len(tail)) + tail for tail in tails])
            padding = self._tensor(columns - lengths[chosen]) if lengths[chosen].min() < columns else None
            parts.append(
                self.runner.prefill(self._tensor(ids), padding, columns=columns, cache=self._memory.cache)
            )
        # back into the order of the prompts
        return torch.cat(parts)[self._tensor(np.argsort(order))]

    def _sample(self, logits: Tensor, first: int, first_row: int) -> list[Ended]:
        """Sample a token for the samples from ``first`` on, whose rows from ``first_row`` on are those of the logits."""
        row = self._row[first:] - first_row
        tokens, fine = self._draw(logits, row, first)
        stopped = self._samples.stopped(first)
        going = fine & ~stopped & ~self._samples.full(first)
        slot = self._samples.slot[first:]
        plan = branch(row[going], tokens[going])
        gone = np.setdiff1d(np.arange(len(logits)), plan.parent)
        if len(gone):
            self._close(gone + first_row, row + first_row, slot, fine)
        self._memory.branch(plan, first_row)
        self._token = np.concatenate([self._token[:first_row], plan.token])
        if going.all():
            self._row = np.concatenate([self._row[:first], plan.row + first_row])
            return []
        ended: list[Ended] = []
        for at in np.flatnonzero(~going).tolist():
            number = int(slot[at])
            completion = None
            if fine[at]:
                reason: FinishReason = "stop" if stopped[at] else "length"
                completion = self._completion(number, reason)
            ended.append((self._samples.submission(number), completion))
        self._let_go(going, plan.row + first_row, first)
        return ended

    def _completion(self, slot: int, reason: FinishReason) -> Completion:
        """Return what was sampled in a slot."""
        samples = self._samples
        return Completion(
            tuple(samples.ids(slot)), tuple(samples.logprobs(slot)), reason, self.weights_version
        )

    def _draw(self, logits: Tensor, row: Ints, first: int) -> tuple[Ints, Flags]:
        """Draw and record a token of every sample from ``first`` on.

        Args:
            logits: (R, V).
            row: (S − first,) row of each of these samples.
            first: Number of samples that are left alone.

        Returns:
            The tokens, and whether logits were finite, so that the token means something.
        """
        rows = self._tensor(row)
        uniforms = self._samples.uniforms(first)
        tokens = np.empty(len(row), np.int64)
        logprobs = np.empty(len(row), np.float32)
        for (temperature, top_p, top_k), chosen in self._samples.by_setting(first):
            at = slice(None) if len(chosen) == len(row) else self._tensor(chosen)
            found, logp = draw(
                logits, uniforms[at], rows=rows[at], temperature=temperature, top_p=top_p, top_k=top_k
            )
            tokens[chosen] = found.cpu().numpy()
            logprobs[chosen] = logp.cpu().numpy()
        self._samples.record(first, tokens, logprobs)
        return tokens, np.isfinite(logprobs)

    def _close(self, gone: Ints, row: Ints, slot: Ints, fine: Flags) -> None:
        """Release rows that nobody continues; what they hold is stored, or cleared where it may not be finite."""
        spoiled = []
        for at in gone.tolist():
            # samples of a row have the same tokens but for the newest, which is not in memory
            sample = int(np.flatnonzero(row == at)[0])
            number = int(slot[sample])
            prompt = self._samples.submission(number).request.prompt_ids
            tokens = (*prompt, *self._samples.ids(number)[:-1])
            if len(tokens) > len(prompt) or not fine[sample]:
                self._memory.discard(prompt)
            if not fine[sample]:
                spoiled.append(at)
            elif self._store:
                self._memory.store(tokens, self._memory.rows, at)
        self._memory.release(gone)
        for at in spoiled:
            self._memory.clear_row(at)

    def _let_go(self, going: Flags, row: Ints, first: int = 0) -> None:
        """Forget samples from ``first`` on that do not go on; the others have the rows ``row`` now."""
        self._samples.leave(going, first)
        self._group = np.concatenate([self._group[:first], self._group[first:][going]])
        self._row = np.concatenate([self._row[:first], row])
        self._count_reserved()

    def _count_reserved(self) -> None:
        running = self.running
        _, firsts = np.unique(self._group, return_index=True)
        self.reserved = sum(submission.own_blocks for submission in running)
        self.reserved += sum(running[at].prompt_blocks for at in firsts.tolist())

    def _tensor(self, array: Ints) -> Tensor:
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
