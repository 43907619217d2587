"""Stop a run whose search engine fails too often."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from drmas_pl.errors import TrainingStopped

_WINDOW: Final = 1000
_LEAST: Final = 50


class FailureGuard:
    """Counts the latest 1000 searches of all clones of an environment; fewer than 50 count as 50.

    Args:
        max_share: Share of failed searches above which :meth:`count` raises; 1 never does.

    Raises:
        ValueError: ``max_share`` is not in [0, 1].

    >>> guard = FailureGuard(0.5)
    >>> for failed in (True, False, True):
    ...     guard.count(failed=failed)
    """

    def __init__(self, max_share: float) -> None:
        if not 0 <= max_share <= 1:
            raise ValueError(f"max_failed_share must be in [0, 1], got {max_share}")
        self.max_share = max_share
        self._failed: deque[bool] = deque(maxlen=_WINDOW)
        self._lock = threading.Lock()

    def count(self, *, failed: bool) -> None:
        """Count one search.

        Raises:
            TrainingStopped: Too many of the latest ones failed.
        """
        with self._lock:
            self._failed.append(failed)
            number = sum(self._failed)
            seen = len(self._failed)
        if failed and number > self.max_share * max(seen, _LEAST):
            raise TrainingStopped(
                f"{number} of the latest {seen} searches failed, more than env.max_failed_share={self.max_share:g} allows; "
                "look after the retriever, then resume"
            )
