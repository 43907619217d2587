"""When the circuit breaker opens, lets one through, and closes."""

from __future__ import annotations

import logging

import pytest

from drmas_pl.retrieval.breaker import CircuitBreaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_opens_after_failures_in_a_row_only() -> None:
    breaker = CircuitBreaker(2, cool_down=10.0, clock=Clock())
    for outcome in (breaker.failed, breaker.succeeded, breaker.failed):
        outcome()
        assert breaker.allows()
    breaker.failed()
    assert not breaker.allows()


def test_lets_one_through_after_each_cool_down_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, cool_down=10.0, clock=clock)
    with caplog.at_level(logging.WARNING):
        breaker.failed()
        clock.now = 9.9
        assert not breaker.allows()
        clock.now = 10.0
        assert [breaker.allows(), breaker.allows()] == [True, False]
        breaker.failed()
        clock.now = 19.0
        assert not breaker.allows()
        clock.now = 20.0
        assert breaker.allows()
        breaker.succeeded()
    assert breaker.allows() and breaker.allows()
    assert [record.message for record in caplog.records] == [
        "1 calls in a row failed; asking again in 10 s",
        "the service answers again",
    ]


@pytest.mark.parametrize(
    ("failures", "cool_down", "message"), [(0, 1.0, "must be at least 1, got 0"), (1, -1.0, "cool_down")]
)
def test_wrong_settings_are_named(failures: int, cool_down: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CircuitBreaker(failures, cool_down=cool_down)
