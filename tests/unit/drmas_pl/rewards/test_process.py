"""One grading process behind its pipes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from drmas_pl.errors import EnvironmentFault
from drmas_pl.rewards import process as module
from drmas_pl.rewards.process import WorkerDied, WorkerProcess

STUCK = "tests.unit.drmas_pl.rewards.stuck_worker"


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess()
    yield process
    process.retire()


def test_a_process_starts_on_first_use_and_stays(worker: WorkerProcess) -> None:
    assert worker.pid is None
    assert worker.grade("7", "7", 20.0).status == "correct"
    pid = worker.pid
    assert worker.grade(r"\sqrt{12}", [r"2\sqrt{3}"], 20.0).reason == "symbolic"
    assert worker.pid == pid


def test_a_killed_process_is_noticed_and_replaced(worker: WorkerProcess) -> None:
    worker.grade("7", "7", 20.0)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        worker.grade("7", "7", 20.0)
    assert worker.grade("7", "7", 20.0).status == "correct"


def test_a_process_killed_while_it_starts_is_started_once_more(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, pids = worker._launch, []

    def launch_and_kill() -> subprocess.Popen[bytes]:
        started = launch()
        pids.append(started.pid)
        if len(pids) == 1:
            started.kill()
        return started

    monkeypatch.setattr(worker, "_launch", launch_and_kill)
    assert worker.grade("7", "7", 20.0).status == "correct"
    assert len(pids) == 2


def test_an_overrun_kills_the_process(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_MODULE", STUCK)
        with pytest.raises(TimeoutError):
            worker.grade("7", "7", 0.2)
    assert worker.pid is None
    assert worker.grade("7", "7", 20.0).status == "correct"


def test_a_frozen_process_is_replaced_after_the_limit(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.grade("7", "7", 20.0)
    frozen = worker.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    waited: list[float] = []
    receive = worker._receive

    def noted(process: subprocess.Popen[bytes], timeout: float) -> object:
        waited.append(timeout)
        return receive(process, timeout)

    monkeypatch.setattr(worker, "_receive", noted)
    with pytest.raises(WorkerDied):
        worker.grade("7", "7", 1.5)
    assert waited == [1.5] and worker.pid is None
    assert worker.grade("7", "7", 20.0).status == "correct"


def test_imports_of_a_process_count_as_no_silence(worker: WorkerProcess) -> None:
    assert worker.grade(r"\sqrt{12}", [r"2\sqrt{3}"], 20.0).reason == "symbolic"


def test_a_retired_process_does_not_start_again(worker: WorkerProcess) -> None:
    worker.grade("7", "7", 20.0)
    worker.retire()
    for _ in range(2):
        with pytest.raises(WorkerDied):
            worker.grade("7", "7", 20.0)


def test_a_process_that_cannot_start_says_how_to_find_out(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MODULE", "drmas_pl.rewards.no_such_module")
    with pytest.raises(EnvironmentFault, match="did not start; run"):
        worker.grade("7", "7", 20.0)
    assert sys.executable
