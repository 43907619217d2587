"""What is known of every sample that is being generated: its request, its tokens so far, and when it ends.

A sample has a slot from its admission to its end. Legend: S live samples, C slots, T most tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drmas_pl.engines.sampling import draw, uniform
from drmas_pl.kernels.blocks import BLOCK
from drmas_pl.kernels.branching import Ints
from drmas_pl.parsing import FinishReason
from drmas_pl.types import GenerationRequest

Flags = NDArray[np.bool_]
Setting = tuple[float, float, int]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that joins the running batch.

    Attributes:
        request: What to continue.
        limit: How many tokens may be sampled, at least one.
    """

    request: GenerationRequest
    limit: int

    @property
    def prompt_blocks(self) -> int:
        """Blocks that all samples of the prompt share."""
        return -(-len(self.request.prompt_ids) // BLOCK)

    @property
    def own_blocks(self) -> int:
        """Largest number of blocks of its own."""
        # the last token is sampled, but never continued; one block more for those that are shared before they are full
        return -(-(self.limit - 1) // BLOCK) + 1


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has left the running batch.

    Attributes:
        admission: What was admitted.
        ids: Sampled ids.
        logprobs: Their log-probabilities.
        finish: Why it ended; None when its logits were not finite, so that nothing could be sampled.
    """

    admission: Admission
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None


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
        self._admissions: list[Admission | None] = []
        self._ids: Ints = np.zeros((0, 0), np.int64)
        self._logprobs: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._limit: Ints = np.zeros(0, np.int64)
        self._seed: Ints = np.zeros(0, np.int64)
        self._setting: Ints = np.zeros(0, np.int64)
        self._has_stop_texts: Flags = np.zeros(0, bool)
        self._settings: list[Setting] = []

    @property
    def admissions(self) -> list[Admission]:
        """What is running, S in all."""
        return [self.admission(slot) for slot in self.slot.tolist()]

    def admission(self, slot: int) -> Admission:
        """Return what has a slot."""
        found = self._admissions[slot]
        assert found is not None
        return found

    def ids(self, slot: int) -> list[int]:
        """Return the ids sampled so far."""
        found: list[int] = self._ids[slot, : self.count[slot]].tolist()
        return found

    def add(self, admissions: Sequence[Admission]) -> None:
        """Give each admission a slot, behind the samples that are live already."""
        free = [slot for slot, admission in enumerate(self._admissions) if admission is None]
        self._grow(len(admissions) - len(free), max(admission.limit for admission in admissions))
        slots = [*free, *range(len(free) + self.slot.size, len(self._admissions))][: len(admissions)]
        for slot, admission in zip(slots, admissions):
            sampling = admission.request.sampling
            setting = (sampling.temperature, sampling.top_p, sampling.top_k)
            if setting not in self._settings:
                self._settings.append(setting)
            self._admissions[slot] = admission
            self._setting[slot] = self._settings.index(setting)
            self._seed[slot] = admission.request.seed
            self._limit[slot] = admission.limit
            self._has_stop_texts[slot] = bool(sampling.stop)
            self.count[slot] = 0
        self.slot = np.concatenate([self.slot, np.array(slots, np.int64)])

    def sample(self, logits: Tensor, row: Ints, first: int) -> tuple[Ints, Flags]:
        """Draw and record one token of every live sample from ``first`` on.

        Args:
            logits: (R, V).
            row: (S − first,) row of each of these samples.
            first: Number of samples that are left alone.

        Returns:
            The tokens, and whether logits were finite, so that the token means something.
        """
        slot = self.slot[first:]
        rows = self._tensor(row)
        uniforms = uniform(self._tensor(self._seed[slot]), self._tensor(self.count[slot]))
        tokens = np.empty(len(slot), np.int64)
        logprobs = np.empty(len(slot), np.float32)
        for (temperature, top_p, top_k), chosen in self._by_setting(slot):
            at = slice(None) if len(chosen) == len(slot) else self._tensor(chosen)
            found, logp = draw(
                logits, uniforms[at], rows=rows[at], temperature=temperature, top_p=top_p, top_k=top_k
            )
            tokens[chosen] = found.cpu().numpy()
            logprobs[chosen] = logp.cpu().numpy()
        self._ids[slot, self.count[slot]] = tokens
        self._logprobs[slot, self.count[slot]] = logprobs
        self.count[slot] += 1
        return tokens, np.isfinite(logprobs)

    def stopped(self, first: int) -> Flags:
        """Tell which live samples from ``first`` on end with their newest token, by itself or by a text that it completes."""
        slot = self.slot[first:]
        stopped = np.isin(self._ids[slot, self.count[slot] - 1], self._stop_ids)
        for at in np.flatnonzero(self._has_stop_texts[slot] & ~stopped).tolist():
            number = int(slot[at])
            stopped[at] = self._stop_reached(self.ids(number), self.admission(number).request.sampling.stop)
        return stopped

    def full(self, first: int) -> Flags:
        """Tell which live samples from ``first`` on have as many tokens as they may."""
        slot = self.slot[first:]
        return self.count[slot] == self._limit[slot]

    def finish(self, slot: int, finish: FinishReason | None) -> Finished:
        """Return what a sample came to, and free its slot."""
        logprobs = self._logprobs[slot, : self.count[slot]].tolist()
        return Finished(self.admission(slot), tuple(self.ids(slot)), tuple(logprobs), finish)

    def leave(self, going: Flags, first: int = 0) -> None:
        """Free the slots of live samples from ``first`` on that do not go on."""
        slot = self.slot[first:]
        for at in slot[~going].tolist():
            self._admissions[at] = None
        self.slot = np.concatenate([self.slot[:first], slot[going]])

    def _by_setting(self, slot: Ints) -> Iterator[tuple[Setting, Ints]]:
        """Yield temperature, top-p and top-k with the places of the samples that have them."""
        numbers = self._setting[slot]
        for number in np.unique(numbers).tolist():
            yield self._settings[number], np.flatnonzero(numbers == number)

    def _grow(self, missing: int, length: int) -> None:
        """Have so many slots more, and room for ``length`` tokens in each."""
        more = max(missing, 0)
        longer = max(length - self._ids.shape[1], 0)
        self._admissions += [None] * more
        self._ids = np.pad(self._ids, ((0, more), (0, longer)))
        self._logprobs = np.pad(self._logprobs, ((0, more), (0, longer)))
        self.count = np.pad(self.count, (0, more))
        self._limit = np.pad(self._limit, (0, more))
        self._seed = np.pad(self._seed, (0, more))
        self._setting = np.pad(self._setting, (0, more))
        self._has_stop_texts = np.pad(self._has_stop_texts, (0, more))

    def _tensor(self, array: Ints) -> Tensor:
        return torch.from_numpy(array).to(self._device)
