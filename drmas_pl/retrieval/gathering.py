"""Make one lookup of the queries of all threads that wait for one.

There is no thread of its own and no timer: whoever finds nobody looking up takes along all who queue, and those who come meanwhile
form the next lookup. So a single caller pays nothing, and many callers share what a server or an encoder costs per call.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from drmas_pl.errors import RetrievalError, RetrieverUnavailable

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Ticket(Generic[T]):
    """Queries of one waiting thread, and what became of them."""

    queries: Sequence[str]
    k: int
    answers: list[T] = field(default_factory=list)
    error: BaseException | None = None
    done: bool = False


class Gatherer(Generic[T]):
    """Calls ``lookup`` for several threads at once, never twice at a time.

    A lookup that fails is tried again in halves, so that a query which the backend cannot take fails alone; one that got no answer
    at all (:class:`~drmas_pl.errors.RetrieverUnavailable`) fails all its queries at once.

    Args:
        lookup: Takes distinct queries and k, returns one answer per query in their order.
        max_batch: Largest number of queries in one lookup.
        window: Seconds that a lookup waits for others to join, if the one before had several callers.

    Raises:
        ValueError: ``max_batch`` is below 1 or ``window`` negative.

    >>> gather = Gatherer(lambda queries, k: [query.upper() for query in queries], max_batch=8)
    >>> gather(["lyon", "paris", "lyon"], 1)
    ['LYON', 'PARIS', 'LYON']
    """

    def __init__(
        self, lookup: Callable[[Sequence[str], int], Sequence[T]], max_batch: int, *, window: float = 0.002
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1 query per lookup, got {max_batch}")
        if window < 0:
            raise ValueError(f"window must be at least 0 seconds, got {window}")
        self.lookup = lookup
        self.max_batch = max_batch
        self.window = window
        self._queue: deque[_Ticket[T]] = deque()
        self._queue_lock = threading.Lock()
        self._turn = threading.Lock()
        # whether the last lookup had several callers, so that others are likely to come
        self._shared = False

    def __call__(self, queries: Sequence[str], k: int) -> list[T]:
        """Answer ``queries``, in their order.

        Raises:
            RetrievalError: The lookup of one of them failed.
        """
        answers: list[T] = []
        for start in range(0, len(queries), self.max_batch):
            answers += self._ask(_Ticket(queries[start : start + self.max_batch], k))
        return answers

    def _ask(self, ticket: _Ticket[T]) -> list[T]:
        with self._queue_lock:
            self._queue.append(ticket)
        with self._turn:
            # while this thread waited for its turn, another one may have taken its queries along
            if not ticket.done and self._shared and self.window:
                time.sleep(self.window)
            while not ticket.done:
                batch = self._take()
                self._shared = len(batch) > 1
                self._serve(batch)
        if ticket.error is not None:
            raise ticket.error
        return ticket.answers

    def _take(self) -> list[_Ticket[T]]:
        """Remove the oldest tickets with one k that fit into a lookup."""
        with self._queue_lock:
            batch = [self._queue.popleft()]
            size = len(batch[0].queries)
            while (
                self._queue
                and self._queue[0].k == batch[0].k
                and size + len(self._queue[0].queries) <= self.max_batch
            ):
                batch.append(self._queue.popleft())
                size += len(batch[-1].queries)
        return batch

    def _serve(self, batch: list[_Ticket[T]]) -> None:
        try:
            self._answer(batch)
        except RetrieverUnavailable as error:
            self._fail(batch, error)
        except RetrievalError as error:
            if len(batch) == 1:
                self._fail(batch, error)
                return
            middle = len(batch) // 2
            self._serve(batch[:middle])
            self._serve(batch[middle:])
        # nobody may wait for ever, whatever went wrong in the thread that worked for the others
        except BaseException as error:
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise

    def _answer(self, batch: list[_Ticket[T]]) -> None:
        queries = list(dict.fromkeys(query for ticket in batch for query in ticket.queries))
        found = dict(zip(queries, self.lookup(queries, batch[0].k), strict=True))
        for ticket in batch:
            ticket.answers = [found[query] for query in ticket.queries]
            ticket.done = True

    def _fail(self, batch: list[_Ticket[T]], error: BaseException) -> None:
        for ticket in batch:
            ticket.error = error
            ticket.done = True
