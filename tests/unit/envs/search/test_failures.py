"""When failed searches are too many."""

from __future__ import annotations

import pytest

from drmas_pl.envs.search.failures import FailureGuard
from drmas_pl.errors import TrainingStopped


def count(guard: FailureGuard, failed: int, well: int = 0) -> None:
    for _ in range(well):
        guard.count(failed=False)
    for _ in range(failed):
        guard.count(failed=True)


def test_fewer_than_fifty_searches_count_as_fifty() -> None:
    guard = FailureGuard(0.2)
    count(guard, 10)
    with pytest.raises(
        TrainingStopped, match=r"11 of the latest 11 searches failed, .*look after the retriever, then resume"
    ):
        count(guard, 1)


def test_the_share_is_of_the_latest_thousand() -> None:
    guard = FailureGuard(0.2)
    count(guard, 150, well=5000)
    count(guard, 0, well=900)
    count(guard, 100)
    with pytest.raises(TrainingStopped, match="201 of the latest 1000"):
        count(guard, 101)


def test_successes_never_stop_a_run() -> None:
    guard = FailureGuard(0.0)
    count(guard, 0, well=100)
    with pytest.raises(TrainingStopped):
        count(guard, 1)
    count(guard, 0, well=1)


def test_a_share_of_one_never_stops_a_run() -> None:
    count(FailureGuard(1.0), 2000)
