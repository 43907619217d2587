"""Signals that end a run: what each does the first time, the second time, and when the grace has passed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from drmas_pl.trainer.stopping import TERMINATING, StopSignals
from tests.helpers.pace import allowed


def listen(grace: float = 60.0) -> tuple[StopSignals, list[int]]:
    acted: list[int] = []
    return StopSignals(lambda: acted.append(1), grace_seconds=grace), acted


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """No test may leave a handler behind."""
    numbers = (signal.SIGINT, *TERMINATING)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


def test_the_first_interrupt_acts_and_the_second_one_raises() -> None:
    signals, acted = listen()
    with pytest.raises(KeyboardInterrupt), signals:
        signal.raise_signal(signal.SIGINT)
        assert acted == [1] and signals.received == signal.SIGINT and not signals.is_terminating
        signal.raise_signal(signal.SIGINT)
    assert acted == [1]


@pytest.mark.parametrize("number", TERMINATING)
def test_a_terminating_signal_acts_once_however_often_it_is_sent(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    signals, acted = listen(grace=7.5)
    with signals:
        for _ in range(3):
            signal.raise_signal(number)
        assert signals.is_terminating and not signals.is_over
    assert acted == [1] and signals.received == number
    assert f"{number.name}: stopping and saving after this iteration, or in 7.5 s" in caplog.text


def test_a_terminating_signal_after_an_interrupt_begins_the_grace() -> None:
    signals, acted = listen()
    with signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert signals.is_terminating and signals.received == signal.SIGINT
    assert acted == [1]


def test_an_interrupt_after_a_terminating_signal_ends_at_once() -> None:
    signals, _ = listen()
    with pytest.raises(KeyboardInterrupt), signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_what_may_be_given_up_ends_with_the_grace() -> None:
    signals, _ = listen(grace=0.05)
    with signals:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), signals.may_be_given_up():
            signal.raise_signal(signal.SIGTERM)
            time.sleep(allowed(30.0))
        assert time.monotonic() - began < allowed(10.0) and signals.is_over


def test_what_may_not_be_given_up_goes_on_and_what_follows_ends_at_once() -> None:
    signals, _ = listen(grace=0.02)
    done = False
    with signals:
        signal.raise_signal(signal.SIGTERM)
        while not signals.is_over:
            time.sleep(0.01)
        time.sleep(0.02)
        done = True
        with pytest.raises(KeyboardInterrupt), signals.may_be_given_up():
            raise AssertionError("this is not reached")
        # what saves the run is disturbed by nothing any more
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert done


def test_the_end_of_the_block_ends_the_grace() -> None:
    signals, _ = listen(grace=0.05)
    with signals:
        signal.raise_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert not signals.is_over


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals, acted = listen()
        with signals:
            signal.raise_signal(signal.SIGHUP)
        assert not acted and signals.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone() -> None:
    seen: list[object] = []

    def run() -> None:
        with listen()[0]:
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
