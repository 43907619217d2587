"""What the driver has asked one rank's engine for: given to the engine under the driver's numbers, answered under the same numbers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue

from drmas_pl.engines.base import Engine
from drmas_pl.errors import EngineError
from drmas_pl.types import Completion, GenerationRequest

NumberedRequest = tuple[int, GenerationRequest]
Answer = tuple[int, Completion | Exception]


class RankRequests:
    """Requests of the driver to one engine. What is answered waits here until the driver collects it.

    Args:
        engine: Answers them; it may do so from any thread.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._futures: dict[int, Future[Completion]] = {}
        self._answers: SimpleQueue[Answer] = SimpleQueue()

    def submit(self, requests: Sequence[NumberedRequest]) -> None:
        """Give requests to the engine; one that it refuses is answered with the error."""
        for number, request in requests:
            try:
                future = self._engine.submit(request)
            except Exception as error:
                self._answers.put((number, as_picklable(error)))
                continue
            self._futures[number] = future
            future.add_done_callback(partial(self._note, number))

    def cancel(self, numbers: Sequence[int]) -> None:
        """Give requests up; those that are answered already are left out."""
        for number in numbers:
            future = self._futures.pop(number, None)
            if future is not None:
                future.cancel()

    def suspend(self) -> None:
        """Have the engine give back what is under way, see :meth:`~drmas_pl.engines.base.Engine.suspend`."""
        self._engine.suspend()

    def step(self, count: int) -> None:
        """Advance the engine by at most ``count`` steps."""
        for _ in range(count):
            if self._engine.idle:
                return
            self._engine.step()

    def collect(self, seconds: float = 0.0) -> list[Answer]:
        """Return what has been answered since the last call.

        Args:
            seconds: How long to wait for the first answer.
        """
        found: list[Answer] = []
        try:
            found.append(self._answers.get(block=seconds > 0, timeout=seconds or None))
            while True:
                found.append(self._answers.get_nowait())
        except Empty:
            return found

    def _note(self, number: int, future: Future[Completion]) -> None:
        """Keep an answer for the driver unless it has given the request up."""
        if self._futures.pop(number, None) is None or future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._answers.put((number, future.result()))
        else:
            self._answers.put((number, as_picklable(error)))


def as_picklable(error: BaseException) -> Exception:
    """Return the error itself where it survives the way to another process, else its words as an :class:`EngineError`.

    >>> as_picklable(ValueError("no"))
    ValueError('no')
    """
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    if isinstance(error, Exception) and type(copy) is type(error):
        return error
    return EngineError(f"{type(error).__name__}: {error}")
