"""Runs after runs in one process, whose memory, files and threads must not grow."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scripts.durability.process import run
from scripts.durability.table import Trial
from scripts.durability.toy import FORMS, WORDS

# What a process may grow by after its first runs, in MB.
MOST_MEGABYTES: Final = 60.0


def soak(minutes: float) -> Iterator[Trial]:
    """Yield one case: training in one process for so many minutes."""
    yield Trial("soak", f"{minutes:g} minutes", lambda folder: _try(minutes, folder))


def _try(minutes: float, folder: Path) -> list[str]:
    record = folder / "faults"
    outcome = run(lambda: _train(minutes, folder, record), folder=folder, limit=60 * minutes + 600)
    faults = [*outcome.faults, *(record.read_text().splitlines() if record.exists() else ())]
    if outcome.code != 0:
        faults.append(f"exit code {outcome.code} ({outcome.text[-300:]!r})")
    print("\n".join(line for line in outcome.text.splitlines() if line.startswith("soak: ")))
    return faults


def _train(minutes: float, folder: Path, record: Path) -> int:
    """Run all forms in turn, and write down what has grown."""
    from drmas_pl.tools.train import main

    deadline = time.monotonic() + 60 * minutes
    first: tuple[float, int, int] | None = None
    turn = 0
    while first is None or time.monotonic() < deadline:
        for form, words in FORMS.items():
            code = main([*WORDS, *words, f"output_dir={folder / f'{form}-{turn}'}"])
            if code != 0:
                return code
        gc.collect()
        # the first turn imports and fills caches
        first = first if turn < 1 else first or _use()
        turn += 1
    before, after = first, _use()
    names = ("MB of memory", "open files", "threads")
    limits = (MOST_MEGABYTES, 0, 0)
    grown = [
        f"{name}: {old:g} before, {new:g} after {turn} turns"
        for name, old, new, limit in zip(names, before, after, limits)
        if new - old > limit
    ]
    record.write_text("\n".join(grown))
    print(f"soak: {turn} turns, {before} before, {after} after")
    return 0


def _use() -> tuple[float, int, int]:
    """Return resident memory in MB, open files and threads of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return megabytes, len(os.listdir("/proc/self/fd")), threading.active_count()
