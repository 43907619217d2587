"""Let coroutines await single completions while the engine generates whole batches.

The collector runs every trajectory as a coroutine and calls :meth:`RequestBatcher.flush` once all of them wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from drmas_pl.engines.base import Engine
from drmas_pl.engines.limits import remaining_tokens
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest

Batch = list[tuple[GenerationRequest, asyncio.Future[Completion]]]


class RequestBatcher:
    """Requests that wait for the next batch of one engine.

    All methods belong to the event loop's own thread.

    Args:
        engine: Generates the batches.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiting: Batch = []

    def __len__(self) -> int:
        return len(self._waiting)

    async def submit(self, request: GenerationRequest) -> Completion:
        """Wait for the batch that answers ``request``.

        Raises:
            EngineError: This prompt leaves no room for a token, or the batch failed.
        """
        # refused here, an overlong prompt fails its own trajectory only
        remaining_tokens(request, self.engine.context_length)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        return await future

    def flush(self) -> int:
        """Generate everything that waits as one batch, sorted by ``order``, and resume its coroutines.

        A failure is raised in exactly the coroutines whose requests were in the batch.

        Returns:
            Number of requests in the batch.
        """
        return self.begin()()

    def begin(self) -> Callable[[], int]:
        """Begin with everything that waits and return what does the rest of :meth:`flush`."""
        batch = sorted(
            (pair for pair in self._waiting if not pair[1].cancelled()), key=lambda pair: pair[0].order
        )
        self._waiting = []
        if not batch:
            return lambda: 0
        try:
            finish = self.engine.begin([request for request, _ in batch])
        except Exception as error:
            return partial(_fail, batch, error)
        return partial(self._settle, batch, finish)

    def _settle(self, batch: Batch, finish: Callable[[], list[Completion]]) -> int:
        """Wait for the completions and resume the coroutines."""
        try:
            completions = finish()
            if len(completions) != len(batch):
                raise EngineError(
                    f"{type(self.engine).__name__} returned {len(completions)} completions for {len(batch)} requests"
                )
        except Exception as error:
            return _fail(batch, error)
        for (_, future), completion in zip(batch, completions):
            future.set_result(completion)
        return len(batch)


def _fail(batch: Batch, error: Exception) -> int:
    for _, future in batch:
        future.set_exception(error)
    return len(batch)
