"""A circuit breaker: after several failures in a row nothing is asked for a while, so that a dead service costs no waiting."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class CircuitBreaker:
    """Counts failures in a row; open it refuses calls, after ``cool_down`` it lets one through to find out.

    Args:
        failures: Failed calls in a row that open it.
        cool_down: Seconds it then stays open.
        clock: Returns the time in seconds.

    Raises:
        ValueError: ``failures`` is below 1 or ``cool_down`` negative.

    >>> breaker = CircuitBreaker(2, cool_down=30.0)
    >>> breaker.failed(), breaker.allows(), breaker.failed(), breaker.allows()
    (None, True, None, False)
    """

    def __init__(
        self, failures: int, *, cool_down: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if failures < 1:
            raise ValueError(f"breaker_failures must be at least 1, got {failures}")
        if cool_down < 0:
            raise ValueError(f"cool_down must be at least 0 seconds, got {cool_down}")
        self.failures = failures
        self.cool_down = cool_down
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._closed_again = 0.0

    def allows(self) -> bool:
        """Tell whether a call may be made now; while open, one is let through after each cool-down."""
        with self._lock:
            if self._in_a_row < self.failures:
                return True
            now = self._clock()
            if now < self._closed_again:
                return False
            # one call finds out; those beside it wait for another cool-down unless it succeeds
            self._closed_again = now + self.cool_down
            return True

    def failed(self) -> None:
        """Count a failed call."""
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row >= self.failures:
                self._closed_again = self._clock() + self.cool_down
            if self._in_a_row == self.failures:
                log.warning("%d calls in a row failed; asking again in %g s", self.failures, self.cool_down)

    def succeeded(self) -> None:
        """Close it."""
        with self._lock:
            if self._in_a_row >= self.failures:
                log.warning("the service answers again")
            self._in_a_row = 0
