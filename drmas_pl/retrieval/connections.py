"""Connections of the retrieval server that cannot keep others out: each has its time, and there is a limit on how many there are.

A connection first waits for a request, headers and body, and then answers it. One that waits longer than a request may take is closed.
When there are too many, the one that has waited longest is closed for a new one; those that answer are left alone.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long connections last, and how many there are.

    Attributes:
        read_seconds: Time for one request to arrive, headers and body, and between two requests.
        answer_seconds: Time for its answer to be found and taken.
        connections: How many there are at a time; None takes half of the descriptors that this process may open, at most 256.
    """

    read_seconds: float = 10.0
    answer_seconds: float = 120.0
    connections: int | None = None

    def __post_init__(self) -> None:
        if not (self.read_seconds > 0 and self.answer_seconds > 0):
            raise ValueError(
                f"read_seconds and answer_seconds must be above 0, got {self.read_seconds} and {self.answer_seconds}"
            )
        if self.connections is not None and self.connections < 1:
            raise ValueError(f"connections must be at least 1, got {self.connections}")

    @property
    def most(self) -> int:
        """Largest number of connections."""
        if self.connections is not None:
            return self.connections
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 256 if soft == resource.RLIM_INFINITY else max(1, min(256, soft // 2))


class LimitedConnection:
    """What is put before uvicorn's HTTP protocol, whose names of parts are used here."""

    limits: ConnectionLimits
    connections: set[Any]
    cycle: Any
    loop: Any
    transport: Any = None
    since = 0.0
    was_answering = False
    timer: Any = None

    @property
    def answering(self) -> bool:
        """Whether a whole request is there and its answer is not."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Take a place, that of the connection that has waited longest if there is none."""
        if len(self.connections) >= self.limits.most and not self._make_room():
            transport.abort()
            return
        super().connection_made(transport)  # type: ignore[misc]
        self.since = self.loop.time()
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        """Give the place back."""
        if self.timer is not None:
            self.timer.cancel()
        if self.transport is not None:
            super().connection_lost(error)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        """Read on, and count anew from when the request is whole."""
        super().data_received(data)  # type: ignore[misc]
        self._note()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()  # type: ignore[misc]
        self._note()

    def _make_room(self) -> bool:
        waiting = [other for other in self.connections if not other.answering]
        if not waiting:
            return False
        longest = min(waiting, key=lambda other: other.since)
        # it counts no longer, although the loop tells it later
        self.connections.discard(longest)
        longest.transport.abort()
        return True

    def _note(self) -> None:
        if self.answering != self.was_answering:
            self.since = self.loop.time()
            self.was_answering = self.answering

    def _watch(self) -> None:
        self._note()
        allowed = self.limits.answer_seconds if self.answering else self.limits.read_seconds
        left = self.since + allowed - self.loop.time()
        if left <= 0:
            self.transport.abort()
        else:
            self.timer = self.loop.call_later(min(left, self.limits.read_seconds), self._watch)


def limited_protocol(limits: ConnectionLimits) -> type[Any]:
    """Return the HTTP protocol of uvicorn whose connections keep the limits; it is what ``http=`` of its configuration takes."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    return type("LimitedProtocol", (LimitedConnection, H11Protocol), {"limits": limits})
