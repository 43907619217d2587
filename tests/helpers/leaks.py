"""What tests may leave behind: nothing that goes on running, and the environment as it was."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

# seconds for what is ending to be gone
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a test could leave behind.

    Attributes:
        threads: Threads that would keep the process alive.
        children: Process ids of child processes.
        sockets: Sockets of the network that are open, by inode.
    """

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    sockets: frozenset[str]


def look() -> Surroundings:
    """Look at what is there now."""
    return Surroundings(
        frozenset(thread for thread in threading.enumerate() if not thread.daemon),
        frozenset(_children()),
        frozenset(_sockets()),
    )


def left_behind(before: Surroundings) -> list[str]:
    """Return what is there now and was not before, in words; what is ending is waited for."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        found = _differences(before, look())
        if not found or time.monotonic() > deadline:
            return found
        # what nobody refers to any more ends with its owner, which may be part of a cycle
        gc.collect()
        time.sleep(0.05)


def variables() -> dict[str, str]:
    """Return the environment variables, but for the one that pytest changes all the time and those that torch sets when it compiles."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTEST_CURRENT_TEST" and not name.startswith(("TORCHINDUCTOR_", "_TORCHINDUCTOR_"))
    }


def changed_variables(before: dict[str, str]) -> list[str]:
    """Return which variables are not what they were, in words."""
    now = variables()
    names = sorted(before.keys() | now.keys())
    return [
        f"{name}: {before.get(name)!r} became {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _differences(before: Surroundings, now: Surroundings) -> list[str]:
    found = [f"thread {thread.name}" for thread in now.threads - before.threads if thread.is_alive()]
    commands = {child: _command(child) for child in now.children - before.children}
    # rank processes, with what tracks their resources, are kept for the files that come later
    found += [
        f"process {child} ({text})" for child, text in commands.items() if "multiprocessing" not in text
    ]
    found += [f"open {socket}" for socket in now.sockets - before.sockets]
    return found


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            # the thread ended meanwhile
            continue
    return found


def _sockets() -> list[str]:
    found = []
    network = _network_sockets()
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in network:
            found.append(target)
    return found


def _network_sockets() -> set[str]:
    """Return the inodes of all TCP sockets; pipes to other processes are sockets, too, and are closed with these."""
    return {
        line.split()[9] for name in ("tcp", "tcp6") for line in _lines(Path(f"/proc/self/net/{name}"))[1:]
    }


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ").strip()[:200]
    except OSError:
        return "gone"
