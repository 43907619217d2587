"""The lock on a run folder: held by a living process, named, and taken over from one that has ended."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.errors import FolderInUse, StorageError
from drmas_pl.utils.folder_lock import LOCK, FolderLock, check_free

HOLD = """
import sys, time
from pathlib import Path
from drmas_pl.utils.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.take()
print("held", flush=True)
time.sleep(600)
"""
# a child that outlives its parent and keeps the parent's open files
ORPHAN = HOLD.replace(
    "time.sleep(600)", "import os\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True); time.sleep(600)"
)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def record(folder: Path, **changes: Any) -> None:
    """Write who holds the folder without holding it."""
    with FolderLock(folder):
        mine = json.loads((folder / LOCK).read_text())
    (folder / LOCK).write_text(json.dumps({**mine, **changes}))


def test_the_lock_says_who_holds_it_and_goes_when_it_is_given_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with FolderLock(folder) as lock:
        mine = json.loads((folder / LOCK).read_text())
        assert (mine["host"], mine["pid"]) == (socket.gethostname(), os.getpid())
        lock.check()
    assert (tmp_path / "new").is_dir() and not folder.exists()
    folder.mkdir()
    with FolderLock(folder):
        pass
    assert folder.is_dir() and not list(folder.iterdir())


def test_a_second_one_is_refused_with_host_process_and_time(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    since = json.loads((tmp_path / LOCK).read_text())["since"]
    message = rf"in use by process {holder.pid} on {socket.gethostname()} since {since[:10]}.*; wait for its end, stop it"
    for attempt in (FolderLock(tmp_path).take, lambda: check_free(tmp_path)):
        with pytest.raises(FolderInUse, match=message):
            attempt()
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(FolderInUse, match=message):
        FolderLock(tmp_path).take()


def test_two_of_one_process_are_refused_as_well(tmp_path: Path) -> None:
    with FolderLock(tmp_path), pytest.raises(FolderInUse, match=f"process {os.getpid()} on"):
        FolderLock(tmp_path).take()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    check_free(tmp_path)
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_a_child_that_outlives_its_parent_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    child = int(process.stdout.readline())
    process.wait()
    try:
        check_free(tmp_path)
        with FolderLock(tmp_path) as lock:
            lock.check()
            with pytest.raises(FolderInUse):
                check_free(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', '{"host": 1}'])
def test_a_record_that_cannot_be_read_stands_in_nobodys_way(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    check_free(tmp_path)
    with FolderLock(tmp_path):
        pass


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system have no locks, as some network file systems."""

    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "in use by process"),
        ({"boot": "an earlier one"}, None),
        ({"pid": 2**22 + 1}, None),
        ({"host": "elsewhere"}, r"on elsewhere since .*if it is known to have ended, delete .*run\.lock"),
        ({"host": "elsewhere", "pid": 2**22 + 1}, "on elsewhere since"),
        ({"namespace": "another container", "pid": 2**22 + 1}, "in use by process"),
    ],
)
def test_without_locks_of_the_file_system_the_record_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str | None
) -> None:
    record(tmp_path, **changes)
    without_locks(monkeypatch)
    if message is None:
        check_free(tmp_path)
        with FolderLock(tmp_path) as lock:
            lock.check()
        return
    for attempt in (FolderLock(tmp_path).take, lambda: check_free(tmp_path)):
        with pytest.raises(FolderInUse, match=message):
            attempt()


def test_another_machine_that_has_let_go_stands_in_nobodys_way(tmp_path: Path) -> None:
    record(tmp_path, host="elsewhere")
    with FolderLock(tmp_path):
        pass


def test_a_folder_that_is_gone_or_taken_over_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with FolderLock(folder) as lock:
        (folder / LOCK).unlink()
        with pytest.raises(StorageError, match=r"run was removed while the run went on"):
            lock.check()
        (folder / LOCK).touch()
        with pytest.raises(StorageError, match=r"run was taken over by another process"):
            lock.check()
    assert (folder / LOCK).exists(), "somebody else's"


def test_a_lock_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    for folder in (tmp_path / "new", tmp_path):
        with pytest.raises(StorageError, match="cannot be written to: No space left on device"):
            FolderLock(folder).take()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_or_a_link_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file cannot be written to: .*; choose another output_dir"):
        FolderLock(tmp_path / "file").take()
    (tmp_path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot be written to"):
        FolderLock(tmp_path).take()
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_cannot_be_deleted_is_given_back_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch, FolderLock(tmp_path):
        patch.setattr(os, "unlink", refuse)
        patch.setattr(Path, "unlink", refuse)
    with FolderLock(tmp_path):
        pass
