"""Times that tests hold follow the speed of the machine."""

from __future__ import annotations

import pytest

from tests.helpers import pace


@pytest.mark.parametrize(("slower", "limit"), [(0.5, 2.0), (1.0, 2.0), (10.0, 20.0)])
def test_a_slow_machine_gets_more_time_and_a_fast_one_no_less(
    slower: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "_pace", lambda period: slower)
    assert pace.allowed(2.0) == pytest.approx(limit)


def test_the_work_takes_time() -> None:
    assert pace._work() > 0
