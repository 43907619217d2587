"""Threads of environment steps: as many as asked for, none that keeps a program alive, one in place of each that hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from drmas_pl.rollout.env_threads import EnvThreads
from tests.helpers.pace import allowed


def test_calls_return_and_raise_in_their_futures() -> None:
    threads = EnvThreads(2)

    def fail() -> None:
        raise LookupError("no such page")

    assert threads.submit(lambda: 7).result(10) == 7
    with pytest.raises(LookupError, match="no such page"):
        threads.submit(fail).result(10)
    threads.shutdown()


def test_no_more_calls_run_at_a_time_than_there_are_threads() -> None:
    threads, most, running, lock = EnvThreads(3), [0], [0], threading.Lock()

    def call() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1

    for future in [threads.submit(call) for _ in range(20)]:
        future.result(10)
    threads.shutdown()
    assert most == [3]


def test_a_thread_that_is_free_is_used_again() -> None:
    threads, names = EnvThreads(8), set()
    for _ in range(5):
        threads.submit(lambda: names.add(threading.current_thread().name)).result(10)
        time.sleep(0.01)
    threads.shutdown()
    assert len(names) <= 2


def test_an_abandoned_call_has_its_place_taken() -> None:
    threads, gate = EnvThreads(1), threading.Event()
    hanging = threads.submit(lambda: gate.wait(30))
    waiting = threads.submit(lambda: "done")
    assert not waiting.done()
    threads.abandon(hanging)
    assert waiting.result(10) == "done"
    gate.set()
    assert hanging.result(10) is True
    # the thread that was late has ended, and one is left
    assert threads.submit(lambda: "again").result(10) == "again"
    threads.shutdown()


def test_after_a_shutdown_waiting_calls_are_cancelled_and_new_ones_refused() -> None:
    threads, begun, gate = EnvThreads(1), threading.Event(), threading.Event()
    running = threads.submit(lambda: (begun.set(), gate.wait(30))[1])
    waiting = threads.submit(lambda: None)
    assert begun.wait(10)
    threads.shutdown()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="the threads of environment steps are shut down"):
        threads.submit(lambda: None)
    gate.set()
    assert running.result(10)


def test_threads_end_after_a_shutdown() -> None:
    before = threading.active_count()
    threads = EnvThreads(4)
    for future in [threads.submit(lambda: time.sleep(0.01)) for _ in range(4)]:
        future.result(10)
    threads.shutdown()
    limit = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < limit:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_there_is_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        EnvThreads(0)


def test_a_thread_that_hangs_does_not_keep_the_program() -> None:
    program = (
        "import time\nfrom drmas_pl.rollout.env_threads import EnvThreads\n"
        "threads = EnvThreads(1)\nthreads.submit(lambda: time.sleep(600))\nthreads.shutdown()\n"
    )
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=allowed(60))
    assert time.monotonic() - started < allowed(30)
