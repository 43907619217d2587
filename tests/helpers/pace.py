"""How fast this machine is, so that a time that a test holds means the same work everywhere."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

# CPU seconds of `_work` on one core of an ordinary machine
USUAL = 0.014
# seconds after which the speed is measured again, since a busy machine changes its speed
PERIOD = 10


def allowed(seconds: float) -> float:
    """Return for a limit in ``seconds`` of an ordinary machine the seconds of this one; a faster machine gets no less."""
    return seconds * max(1.0, _pace(int(time.monotonic() / PERIOD)))


@functools.lru_cache(maxsize=1)
def _pace(period: int) -> float:
    return min(_work() for _ in range(3)) / USUAL


def _work() -> float:
    started = time.process_time()
    total = 0
    for number in range(200_000):
        total += number
    return time.process_time() - started


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that another thread or process does.

    Raises:
        TimeoutError: It has not come about within ``seconds`` of an ordinary machine.
    """
    end = time.monotonic() + allowed(seconds)
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing came about within {seconds:g} s")
        time.sleep(0.01)
