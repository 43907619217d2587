"""Many programs, few at a time, and nothing left of them."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import resource
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from drmas_pl.errors import SandboxError
from drmas_pl.sandbox import BuiltinSandbox, Sandbox, SandboxPool, SandboxResult
from drmas_pl.sandbox.base import Isolation
from tests.helpers.pace import allowed


class Counting(Sandbox):
    """Counts how many programs run at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.lock = threading.Lock()

    def run(self, program: str, *, stdin: str = "", timeout: float = 10.0) -> SandboxResult:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)
        with self.lock:
            self.now -= 1
        return SandboxResult("ok", f"{program} {stdin} {timeout}")

    def describe(self) -> Isolation:
        return Isolation("counting", ())

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_than_so_many_at_a_time(workers: int) -> None:
    sandbox = Counting()
    with SandboxPool(sandbox, workers=workers) as pool:
        results = pool.run_many([str(n) for n in range(9)], stdin=[str(-n) for n in range(9)], timeout=2.0)
    assert [result.stdout for result in results] == [f"{n} {-n} 2.0" for n in range(9)]
    assert sandbox.most == workers
    assert sandbox.closed


def test_coroutines_wait_together() -> None:
    async def play(pool: SandboxPool) -> list[SandboxResult]:
        return await asyncio.gather(*(pool.run_async(str(n), stdin="x") for n in range(4)))

    with SandboxPool(Counting(), workers=2) as pool:
        assert [result.stdout[0] for result in asyncio.run(play(pool))] == ["0", "1", "2", "3"]


def test_a_closed_pool_refuses() -> None:
    pool = SandboxPool(Counting(), workers=1)
    pool.close()
    pool.close()
    with pytest.raises(SandboxError, match="the sandbox pool is closed"):
        pool.run("")


def test_copies_share_the_pool() -> None:
    with SandboxPool(Counting()) as pool:
        assert copy.deepcopy({"pool": pool})["pool"] is pool
        assert pool.describe().backend == "counting"


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1 program at a time or None, got 0"):
        SandboxPool(Counting(), workers=0)
    with (
        SandboxPool(Counting()) as pool,
        pytest.raises(ValueError, match="one text per program, got 1 for 2"),
    ):
        pool.run_many(["", ""], stdin=[""])


class Recording(Counting):
    """Remembers what it ran; a program that is a status ends with it."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[str] = []

    def run(self, program: str, *, stdin: str = "", timeout: float = 10.0) -> SandboxResult:
        self.runs.append(program + stdin)
        return SandboxResult(program, f"{len(self.runs)}", seconds=2.0)  # type: ignore[arg-type]


def test_results_are_remembered_where_asked_unless_a_limit_ended_the_program() -> None:
    for remembered, runs in ((0, 5), (8, 2), (1, 4)):
        sandbox = Recording()
        with SandboxPool(sandbox, workers=1, remembered=remembered) as pool:
            for program in ("ok", "error", "ok", "error", "error"):
                assert pool.run(program).status == program
        assert len(sandbox.runs) == runs
    sandbox = Recording()
    with SandboxPool(sandbox, workers=1, remembered=8) as pool:
        for program, stdin, timeout in (
            ("timeout", "", 3.0),
            ("timeout", "", 3.0),
            ("ok", "", 3.0),
            ("ok", "1", 3.0),
            ("ok", "1", 1.0),
        ):
            pool.run(program, stdin=stdin, timeout=timeout)
    assert sandbox.runs == ["timeout", "timeout", "ok", "ok1", "ok1"]


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this test a folder of its own: others that run meanwhile have sandboxes in the common one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def leftovers() -> tuple[int, int, int]:
    """Count descriptors, child processes and sandbox folders."""
    me = psutil.Process()
    folders = len(list(Path(os.environ.get("TMPDIR", "/tmp")).glob("drmas-sandbox-*")))
    return me.num_fds(), len(me.children(recursive=True)), folders


def play_programs(count: int) -> float:
    """Run short programs of all kinds; return processor seconds per program."""
    kinds = [
        "print(1)",
        "1 / 0",
        "import os; os.fork()",
        "import os; os.close(1)",
        "open('f', 'w').write('x')",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with SandboxPool(BuiltinSandbox(), workers=2) as pool:
        results = pool.run_many([kinds[n % len(kinds)] for n in range(count)])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert {result.status for result in results} == {"ok", "error"}
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count


@pytest.mark.usefixtures("temporary_folder")
def test_nothing_is_left_of_programs() -> None:
    play_programs(4)
    before = leftovers()
    play_programs(20)
    assert leftovers() == before


@pytest.mark.slow
@pytest.mark.usefixtures("temporary_folder")
def test_a_thousand_programs_leave_nothing_and_are_quick() -> None:
    play_programs(50)
    gc.collect()
    before, memory = leftovers(), psutil.Process().memory_info().rss
    seconds = play_programs(1000)
    gc.collect()
    assert leftovers() == before
    assert psutil.Process().memory_info().rss - memory < 8 * 2**20
    assert seconds < allowed(1 / 20), f"{1 / seconds:.0f} programs per second and core"
