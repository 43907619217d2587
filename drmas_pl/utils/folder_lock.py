"""A lock on a folder that a living process holds, so that no two processes write into it.

The file ``run.lock`` says who holds it since when. What counts is the lock that the operating system keeps on the file and drops with the
process, however it ends. Where a file system has no such locks, and for children that outlive their parent, the record decides: a process
of this machine that has ended, or of an earlier boot, holds nothing. Of a process on another machine that cannot be told there.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from drmas_pl.errors import FolderInUse, StorageError

LOCK: Final = "run.lock"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_UNSUPPORTED: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock.

    Attributes:
        host: Name of the machine.
        pid: Process on it.
        since: Local time at which it took the lock.
        boot: What identifies the machine's start; empty where that cannot be told.
        namespace: What identifies the processes that it sees, as in containers; empty where that cannot be told.
    """

    host: str
    pid: int
    since: str
    boot: str
    namespace: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"

    @property
    def has_ended(self) -> bool:
        """Whether it is known to hold nothing any more, which can be told of processes of this machine alone."""
        if self.host != socket.gethostname():
            return False
        return self.boot != _boot() or (self.namespace == _namespace() and not _is_alive(self.pid))


class FolderLock:
    """Holds a folder for this process; a context manager.

    Args:
        folder: The folder; made when the lock is taken.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._handle: int | None = None
        self._made_folder = False

    def __enter__(self) -> FolderLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> None:
        """Take the lock, also from a process that has ended.

        Raises:
            FolderInUse: A living process holds it, or one on another machine of which nothing is known.
            StorageError: The folder cannot be written to.
        """
        try:
            self._made_folder = not self.path.parent.exists()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while self._handle is None:
                self._handle = self._attempt()
        except OSError as error:
            raise StorageError(
                f"{self.path.parent} cannot be written to: {error.strerror}; choose another output_dir, or make it writable"
            ) from error

    def release(self) -> None:
        """Give the lock back, and delete a folder that was made for it and is empty; without one nothing happens."""
        if self._handle is None:
            return
        # what cannot be deleted any more is taken over by the next one
        with suppress(OSError):
            if self.is_held:
                self.path.unlink()
                if self._made_folder and not any(self.path.parent.iterdir()):
                    self.path.parent.rmdir()
        os.close(self._handle)
        self._handle = None

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock, and the folder is still where it was."""
        return self._handle is not None and _is_at(self._handle, self.path)

    def check(self) -> None:
        """Make sure that the folder is still there and this process's own.

        Raises:
            StorageError: It was removed, or another process has taken it over.
        """
        if self._handle is not None and not self.is_held:
            what = "was taken over by another process" if self.path.exists() else "was removed"
            raise StorageError(f"{self.path.parent} {what} while the run went on")

    def _attempt(self) -> int | None:
        """Try once, and return the open file; None where it is no longer the one that has the name."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        kept = False
        try:
            is_free = _is_free(handle, self.path)
            if not _is_at(handle, self.path):
                return None
            if not is_free:
                # a child of the process that has ended keeps the file open, which is the lock no more
                self.path.unlink()
                return None
            self._write(handle)
            kept = True
        finally:
            if not kept:
                os.close(handle)
        return handle

    def _write(self, handle: int) -> None:
        """Say who holds the lock, or leave nothing behind."""
        try:
            _write(handle)
        except OSError:
            self.path.unlink()
            if self._made_folder:
                self.path.parent.rmdir()
            raise


def check_free(folder: Path) -> None:
    """Make sure that no living process holds a folder, without keeping or writing anything.

    Raises:
        FolderInUse: One does.
    """
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        _is_free(handle, folder / LOCK)
    finally:
        os.close(handle)


def _is_free(handle: int, path: Path) -> bool:
    """Tell whether an open file is locked now for this process, or else that whoever locked it has ended.

    Raises:
        FolderInUse: That one is alive, or may be.
    """
    is_locked = _lock(handle)
    holder = _read(handle)
    if is_locked or (holder is None and is_locked is None):
        return True
    if holder is None or not holder.has_ended:
        remedy = "wait for its end, stop it, or choose another output_dir"
        if holder is not None and holder.host != socket.gethostname():
            remedy += f"; if it is known to have ended, delete {path}"
        raise FolderInUse(f"{path.parent} is in use by {holder or 'another process'}; {remedy}")
    # without locks of the file system the record alone decides
    return is_locked is None


def _lock(handle: int) -> bool | None:
    """Try to lock an open file: whether it is ours now; None where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True


def _read(handle: int) -> Holder | None:
    """Return who is written down; None where that cannot be read, as in the moment after the file was made."""
    try:
        record: Any = json.loads(os.pread(handle, 4096, 0))
        return Holder(**{**record, "pid": int(record["pid"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _write(handle: int) -> None:
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    holder = Holder(socket.gethostname(), os.getpid(), now, _boot(), _namespace())
    os.ftruncate(handle, 0)
    os.pwrite(handle, (json.dumps(asdict(holder)) + "\n").encode(), 0)


def _is_at(handle: int, path: Path) -> bool:
    """Tell whether an open file is the one that has this name."""
    try:
        there = os.stat(path, follow_symlinks=False)
        here = os.fstat(handle)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
