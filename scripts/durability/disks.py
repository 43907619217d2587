"""Runs on disks that are full, read-only or gone, and in folders in which something else has the name of what they write."""

from __future__ import annotations

import ctypes
import functools
import itertools
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from scripts.durability.compare import differences, leftovers
from scripts.durability.file_operations import at_operation
from scripts.durability.kills import Reference, finish, play_reference
from scripts.durability.process import program, run
from scripts.durability.table import Trial, trials

# Largest size that a file may have, in bytes: from nothing at all to all but the optimizer's state.
SIZES: Final = (0, 100, 1_000, 5_000, 20_000, 60_000, 110_000, 150_000)
PLACES: Final = (
    "checkpoints",
    "trajectories",
    "metrics.jsonl",
    "config.yaml",
    "summary.json",
    "plot.png",
    "report.html",
    "run.lock",
)
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root ignores permissions
_OVERRIDE: Final = 0b110
_CAPABILITY_VERSION: Final = 0x20080522


def _file(path: Path) -> None:
    path.write_text("something else")


def _folder(path: Path) -> None:
    (path / "something else").mkdir(parents=True)


def _full(path: Path) -> None:
    path.symlink_to("/dev/full")


OBSTACLES: Final[Mapping[str, Callable[[Path], None]]] = {
    "is a file": _file,
    "is a folder": _folder,
    "is a full device": _full,
}


def cases() -> list[str]:
    """Name every state of a disk."""
    sizes = [f"files of at most {size} bytes" for size in SIZES]
    obstacles = [f"{place} {kind}" for place, kind in itertools.product(PLACES, OBSTACLES)]
    gone = [f"the folder is gone at operation {number}" for number in (2, 20, 60, 120)]
    read_only = [f"the folder is read-only at operation {number}" for number in (1, 30, 70, 130)]
    return [*sizes, *obstacles, *gone, *read_only]


def fill(place: Path, count: int | None = None) -> Iterator[Trial]:
    """Yield states of disks; all of them, or ``count`` that differ. The run to compare with is played in ``place``."""
    chosen = cases()
    if count is not None:
        chosen = chosen[3 :: max(len(chosen) // count, 1)][:count]
    reference = functools.cache(lambda: play_reference("shared", place))
    yield from trials("disks", chosen, lambda case, folder: _try(case, folder, reference()))


def _try(case: str, folder: Path, reference: Reference) -> Iterable[str]:
    target = folder / "run"
    words = [*reference.words, f"output_dir={target}"]
    prepare = _preparation(case, target)
    outcome = run(program(words), prepare=prepare, folder=folder)
    faults = list(outcome.faults)
    # nothing can be deleted where nothing can be written
    if "read-only" not in case:
        faults += [
            name for name in leftovers(target) if not (case.startswith("run.lock") and "run.lock" in name)
        ]
    if outcome.code not in (0, 1, 2):
        faults.append(f"exit code {outcome.code} ({outcome.text[-300:]!r})")
    if outcome.code == 1 and not any(
        word in outcome.error for word in ("go on", "start again", "choose another", "move")
    ):
        faults.append(f"no remedy in {outcome.error!r}")
    _repair(case, target)
    if outcome.code == 0 and not target.exists():
        return [*faults, "ended well in a folder that is gone"]
    faults += finish(target, words, folder)
    return [*faults, *differences_but_for_gaps(target, reference.folder)]


def differences_but_for_gaps(target: Path, reference: Path) -> list[str]:
    """Name differences of a repaired run; trajectories that could not be written before the repair are no fault."""
    return [name for name in differences(target, reference) if name != "trajectories differ"]


def _preparation(case: str, target: Path) -> Callable[[], None]:
    """Return what brings a disk into a state."""
    number = int(case.rpartition(" ")[2]) if case.rpartition(" ")[2].isdigit() else 0
    if case.startswith("files of at most"):
        size = int(case.split()[-2])
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    if case.startswith("the folder is gone"):
        return at_operation(target, number, lambda: shutil.rmtree(target, ignore_errors=True))
    if case.startswith("the folder is read-only"):
        return _read_only(target, number)
    place, _, kind = case.partition(" ")

    def obstruct() -> None:
        target.mkdir()
        OBSTACLES[kind](target / place)

    return obstruct


def _read_only(target: Path, number: int) -> Callable[[], None]:
    """Take the right to write away, also from root."""

    def forbid() -> None:
        for folder in (target, *target.rglob("*")):
            if folder.is_dir():
                folder.chmod(0o555)

    def install() -> None:
        _give_up_override()
        at_operation(target, number, forbid)()

    return install


def _give_up_override() -> None:
    """Let permissions hold for this process although it may be root's; see capset(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) == 0:
        for index in range(3):
            sets[index] &= ~_OVERRIDE
        libc.capset(header, sets)


def _repair(case: str, target: Path) -> None:
    """Undo what was done to a disk."""
    place, _, kind = case.partition(" ")
    if kind in OBSTACLES:
        path = target / place
        if path.is_dir() and not path.is_symlink() and (path / "something else").exists():
            shutil.rmtree(path)
        elif path.is_symlink() or (path.is_file() and path.read_bytes()[:14] == b"something else"):
            path.unlink()
    for folder in (target, *target.rglob("*")) if target.exists() else ():
        if folder.is_dir():
            folder.chmod(0o777)
