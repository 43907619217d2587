"""Grading in killable processes."""

import asyncio
import copy
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.errors import EnvironmentFault
from drmas_pl.rewards import Verdict, process
from drmas_pl.rewards import pool as module
from drmas_pl.rewards.math import grade
from drmas_pl.rewards.pool import GraderPool
from tests.helpers.pace import allowed

STUCK = "tests.unit.drmas_pl.rewards.stuck_worker"
SYMBOLIC = (r"So \boxed{\sqrt{12}}", r"2\sqrt{3}")


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(workers=2, timeout=allowed(20.0)) as shared:
        yield shared


def test_cheap_answers_need_no_process() -> None:
    with GraderPool(workers=1) as lazy:
        assert lazy.grade(r"\boxed{042}", "42").status == "correct"
        assert lazy.grade("no box", "42").reason == "no box"
        assert [worker.pid for worker in lazy._workers] == [None]


def test_verdicts_are_those_of_the_grader(pool: GraderPool) -> None:
    pairs = [
        SYMBOLIC,
        (r"\boxed{x+1}", "1+x"),
        (r"\boxed{7}", "7"),
        (r"\boxed{x}", "y"),
        (r"\boxed{7} \boxed{", "7"),
        (r"\boxed{\pi}", "3.14"),
    ]
    texts, references = [text for text, _ in pairs], [reference for _, reference in pairs]
    assert pool.grade_many(texts, references) == [grade(text, reference) for text, reference in pairs]
    assert [pool.grade(*pair) for pair in pairs] == [grade(*pair) for pair in pairs]


def test_references_may_be_alternatives(pool: GraderPool) -> None:
    assert pool.grade(SYMBOLIC[0], ("1", SYMBOLIC[1])).status == "correct"


def test_an_event_loop_is_not_blocked(pool: GraderPool) -> None:
    async def gather() -> list[str]:
        return [
            verdict.status
            for verdict in await asyncio.gather(*(pool.grade_async(*SYMBOLIC) for _ in range(8)))
        ]

    assert asyncio.run(gather()) == ["correct"] * 8


def test_threads_may_share_a_pool(pool: GraderPool) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(pool.grade(*SYMBOLIC).status)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["correct"] * 8


def test_copies_share_the_pool(pool: GraderPool) -> None:
    assert copy.deepcopy({"pool": pool})["pool"] is pool


def test_a_stuck_worker_is_a_timeout_and_the_next_answer_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    with GraderPool(workers=1, timeout=0.2) as single:
        with monkeypatch.context() as patch:
            patch.setattr(process, "_MODULE", STUCK)
            assert single.grade(*SYMBOLIC) == Verdict("ungradable", "timeout", r"\sqrt{12}")
        single._timeout = allowed(20.0)
        assert single.grade(*SYMBOLIC).status == "correct"


def test_waiting_in_the_queue_is_not_run_time() -> None:
    limit = allowed(2.0)
    with GraderPool(workers=1, timeout=limit) as single:
        single.grade(*SYMBOLIC)
        run = single._workers[0].grade

        def slow(*args: Any, **kwargs: Any) -> Any:
            time.sleep(limit / 4)
            return run(*args, **kwargs)

        single._workers[0].grade = slow  # type: ignore[method-assign]
        verdicts = single.grade_many([SYMBOLIC[0]] * 6, [SYMBOLIC[1]] * 6)
        assert [verdict.status for verdict in verdicts] == ["correct"] * 6


def test_a_worker_killed_once_is_retried_and_twice_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with GraderPool(workers=1, timeout=allowed(20.0)) as single:
        single.grade(*SYMBOLIC)
        os.kill(single._workers[0].pid or 0, signal.SIGKILL)
        assert single.grade(*SYMBOLIC).status == "correct"

        def die(*_: object) -> None:
            raise module.WorkerDied

        monkeypatch.setattr(module.WorkerProcess, "grade", die)
        assert single.grade(*SYMBOLIC).reason == "worker died"


def wait_for_process(single: GraderPool) -> int:
    """Return the process id of the first worker that runs."""
    deadline = time.monotonic() + allowed(60)
    while (pid := next((worker.pid for worker in single._workers if worker.pid is not None), None)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return pid


def test_a_worker_killed_while_grading_is_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    began = tmp_path / "began"
    with GraderPool(workers=1, timeout=60.0) as single:
        with monkeypatch.context() as patch:
            patch.setattr(process, "_MODULE", STUCK)
            patch.setenv("STUCK_WORKER_BEGAN", str(began))
            future = single.submit(*SYMBOLIC)
            deadline = time.monotonic() + allowed(60)
            while not began.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            stuck = single._workers[0].pid
            assert stuck is not None
            assert not future.done()
        os.kill(stuck, signal.SIGKILL)
        assert future.result(timeout=120).status == "correct"
        assert single._workers[0].pid != stuck


def test_killing_one_of_two_workers_loses_no_answer(pool: GraderPool) -> None:
    texts = [rf"\boxed{{\sqrt{{{4 * n}}}}}" for n in range(2, 42)]
    references = [rf"2\sqrt{{{n}}}" for n in range(2, 42)]
    futures = [pool.submit(*pair) for pair in zip(texts, references, strict=True)]
    os.kill(wait_for_process(pool), signal.SIGKILL)
    assert [future.result(timeout=120).status for future in futures] == ["correct"] * len(texts)


def test_a_closed_pool_refuses_work_and_fails_what_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_MODULE", STUCK)
    single = GraderPool(workers=1, timeout=60.0)
    running, waiting = single.submit(*SYMBOLIC), single.submit(*SYMBOLIC)
    wait_for_process(single)
    single.close()
    single.close()
    with pytest.raises(EnvironmentFault, match="closed"):
        running.result(timeout=60)
    with pytest.raises(CancelledError):
        waiting.result(timeout=60)
    with pytest.raises(EnvironmentFault, match="closed"):
        single.grade(r"\boxed{7}", "7")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"workers": 0}, "workers must be at least 1"), ({"timeout": 0.0}, "timeout must be above 0")],
)
def test_settings_are_checked(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraderPool(**settings)  # type: ignore[arg-type]


def test_batches_need_references_for_every_text(pool: GraderPool) -> None:
    with pytest.raises(ValueError, match="references must have one entry per text"):
        pool.grade_many(["a"], [])
