"""What is known of every sample that is being generated: its request, its tokens so far, and when it ends.

A sample has a slot from the moment that it joins what runs to its end. Legend: S live samples, C slots, T most tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drmas_pl.engines.sampling import uniform
from drmas_pl.kernels.blocks import BLOCK
from drmas_pl.kernels.branching import Ints
from drmas_pl.types import Completion, GenerationRequest

Flags = NDArray[np.bool_]
Setting = tuple[float, float, int]


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A request that was submitted.

    Attributes:
        request: What to continue.
        limit: How many tokens may be sampled, at least one.
        future: Gets the completion.
    """

    request: GenerationRequest
    limit: int
    future: Future[Completion]

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.cancelled()

    @property
    def prompt_blocks(self) -> int:
        """Blocks that all samples of the prompt share."""
        return -(-len(self.request.prompt_ids) // BLOCK)

    @property
    def own_blocks(self) -> int:
        """Largest number of blocks of its own."""
        # the last token is sampled, but never continued; one block more for those that are shared before they are full
        return -(-(self.limit - 1) // BLOCK) + 1


class Samples:
    """The samples that are running.

    Args:
        stop_token_ids: Ids that end a response.
        stop_reached: Recognises stop texts.
        device: Where logits are.

    Attributes:
        slot: (S,) slot of each live sample.
        count: (C,) number of tokens sampled.
    """

    def __init__(
        self,
        stop_token_ids: frozenset[int],
        stop_reached: Callable[[Sequence[int], Sequence[str]], bool],
        device: torch.device,
    ) -> None:
        self.slot: Ints = np.zeros(0, np.int64)
        self.count: Ints = np.zeros(0, np.int64)
        self._stop_ids = np.array(sorted(stop_token_ids), np.int64)
        self._stop_reached = stop_reached
        self._device = device
        # by slot
        self._submissions: list[Submission | None] = []
        self._ids: Ints = np.zeros((0, 0), np.int64)
        self._logprobs: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._limit: Ints = np.zeros(0, np.int64)
        self._seed: Ints = np.zeros(0, np.int64)
        self._setting: Ints = np.zeros(0, np.int64)
        self._has_stop_texts: Flags = np.zeros(0, bool)
        # tokens of the response that were sampled before its admission
        self._sampled_before: Ints = np.zeros(0, np.int64)
        self._settings: list[Setting] = []

    @property
    def submissions(self) -> list[Submission]:
        """What is running, S in all."""
        return [self.submission(slot) for slot in self.slot.tolist()]

    def submission(self, slot: int) -> Submission:
        """Return what has a slot."""
        found = self._submissions[slot]
        assert found is not None
        return found

    def ids(self, slot: int) -> list[int]:
        """Return the ids sampled so far."""
        found: list[int] = self._ids[slot, : self.count[slot]].tolist()
        return found

    def add(self, submissions: Sequence[Submission]) -> None:
        """Give each of them a slot, behind the samples that are live already."""
        free = [slot for slot, submission in enumerate(self._submissions) if submission is None]
        self._grow(len(submissions) - len(free), max(submission.limit for submission in submissions))
        slots = [*free, *range(len(free) + self.slot.size, len(self._submissions))][: len(submissions)]
        for slot, submission in zip(slots, submissions):
            sampling = submission.request.sampling
            setting = (sampling.temperature, sampling.top_p, sampling.top_k)
            if setting not in self._settings:
                self._settings.append(setting)
            self._submissions[slot] = submission
            self._setting[slot] = self._settings.index(setting)
            self._seed[slot] = submission.request.seed
            self._limit[slot] = submission.limit
            self._has_stop_texts[slot] = bool(sampling.stop)
            self._sampled_before[slot] = len(submission.request.sampled_ids)
            self.count[slot] = 0
        self.slot = np.concatenate([self.slot, np.array(slots, np.int64)])

    def uniforms(self, first: int) -> Tensor:
        """Return (S − first,) uniform random numbers for the next token of the live samples from ``first`` on."""
        slot = self.slot[first:]
        position = self._sampled_before[slot] + self.count[slot]
        return uniform(self._tensor(self._seed[slot]), self._tensor(position))

    def by_setting(self, first: int) -> Iterator[tuple[Setting, Ints]]:
        """Yield each temperature, top-p and top-k with the places, counted from ``first``, of the live samples that have them."""
        numbers = self._setting[self.slot[first:]]
        for number in np.unique(numbers).tolist():
            yield self._settings[number], np.flatnonzero(numbers == number)

    def record(self, first: int, tokens: Ints, logprobs: NDArray[np.float32]) -> None:
        """Append a token to every live sample from ``first`` on."""
        slot = self.slot[first:]
        self._ids[slot, self.count[slot]] = tokens
        self._logprobs[slot, self.count[slot]] = logprobs
        self.count[slot] += 1

    def stopped(self, first: int) -> Flags:
        """Tell which live samples from ``first`` on end with their newest token, by itself or by a text that it completes."""
        slot = self.slot[first:]
        stopped = np.isin(self._ids[slot, self.count[slot] - 1], self._stop_ids)
        for at in np.flatnonzero(self._has_stop_texts[slot] & ~stopped).tolist():
            number = int(slot[at])
            request = self.submission(number).request
            stopped[at] = self._stop_reached((*request.sampled_ids, *self.ids(number)), request.sampling.stop)
        return stopped

    def full(self, first: int) -> Flags:
        """Tell which live samples from ``first`` on have as many tokens as they may."""
        slot = self.slot[first:]
        return self.count[slot] == self._limit[slot]

    def logprobs(self, slot: int) -> list[float]:
        """Return their log-probabilities."""
        found: list[float] = self._logprobs[slot, : self.count[slot]].tolist()
        return found

    def leave(self, going: Flags, first: int = 0) -> None:
        """Free the slots of live samples from ``first`` on that do not go on."""
        slot = self.slot[first:]
        for at in slot[~going].tolist():
            self._submissions[at] = None
        self.slot = np.concatenate([self.slot[:first], slot[going]])

    def _grow(self, missing: int, length: int) -> None:
        """Have so many slots more, and room for ``length`` tokens in each."""
        more = max(missing, 0)
        longer = max(length - self._ids.shape[1], 0)
        self._submissions += [None] * more
        self._ids = np.pad(self._ids, ((0, more), (0, longer)))
        self._logprobs = np.pad(self._logprobs, ((0, more), (0, longer)))
        self.count = np.pad(self.count, (0, more))
        self._limit = np.pad(self._limit, (0, more))
        self._seed = np.pad(self._seed, (0, more))
        self._setting = np.pad(self._setting, (0, more))
        self._has_stop_texts = np.pad(self._has_stop_texts, (0, more))
        self._sampled_before = np.pad(self._sampled_before, (0, more))

    def _tensor(self, array: Ints) -> Tensor:
        return torch.from_numpy(array).to(self._device)
