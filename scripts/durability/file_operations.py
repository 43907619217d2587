"""Doing something to a process at its n-th file operation inside of a folder, which is the same moment every time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_CHANGING: Final = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "os.link"}
)


def at_operation(folder: Path, number: int, act: Callable[[], None]) -> Callable[[], None]:
    """Return what makes a process act before its ``number``-th file operation below ``folder``, counted from 1.

    Operations are opening a file to write, and what changes names. It holds for the rest of the process.
    """

    def install() -> None:
        left = [number]

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if left[0] > 0 and _changes(event, arguments, str(folder)):
                left[0] -= 1
                if left[0] == 0:
                    act()

        sys.addaudithook(hook)

    return install


def count_operations(folder: Path, record: Path) -> Callable[[], None]:
    """Return what makes a process write down, one line each, its file operations below ``folder``."""

    def install() -> None:
        handle = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if _changes(event, arguments, str(folder)):
                os.write(handle, f"{event} {arguments[0]!r}\n".encode())

        sys.addaudithook(hook)

    return install


def _changes(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    """Tell whether an audited event changes something below a folder."""
    is_writing = event == "open" and _writes(arguments)
    if not (is_writing or event in _CHANGING):
        return False
    name = arguments[0]
    if isinstance(name, int):
        return False
    return os.path.abspath(os.fsdecode(name)).startswith(folder + os.sep)


def _writes(arguments: tuple[Any, ...]) -> bool:
    """Tell whether a file is opened to write, by ``open`` or by ``os.open``."""
    _, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR))
