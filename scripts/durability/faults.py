"""Runs whose environment or team fails once: one trajectory fails for it, and the run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from scripts.durability.process import program, run
from scripts.durability.table import Trial, trials
from scripts.durability.toy import ERRORS, RESULTS, WORDS

PLACES: Final = ("env.begin", "env.act", "team.begin", "team.play")
# What an environment may return without breaking its contract.
_ALLOWED: Final = ("long text", "control characters")


def cases() -> list[str]:
    """Name every fault by place and kind."""
    errors = [f"{place} raises {kind}" for place in PLACES for kind in ERRORS]
    return [*errors, *(f"env.act returns {kind}" for kind in RESULTS)]


def break_code(count: int | None = None) -> Iterator[Trial]:
    """Yield faults; all of them, or ``count`` that differ."""
    chosen = cases()
    if count is not None:
        chosen = chosen[2 :: max(len(chosen) // count, 1)][:count]
    yield from trials("faults of code", chosen, _try)


def _try(case: str, folder: Path) -> Iterable[str]:
    place, _, kind = case.replace(" returns ", " raises ").partition(" raises ")
    setting = "env" if place.startswith("env") else "agents"
    words = [*WORDS, f"+{setting}.place={place}", f"+{setting}.kind='{kind}'", "evaluation.retries=0"]
    # validations come first, and what fails there counts in nothing
    words += ["rollout.max_failed_share=0.5", f"output_dir={folder / 'run'}"]
    outcome = run(program(words), folder=folder)
    faults = list(outcome.faults)
    if outcome.code != 0:
        return [*faults, f"exit code {outcome.code} ({outcome.error or outcome.text[-300:]!r})"]
    failed = _failed(folder / "run")
    if failed != (0 if kind in _ALLOWED else 1):
        faults.append(f"{failed} trajectories failed")
    return faults


def _failed(folder: Path) -> int:
    """Count trajectories that failed."""
    files = (folder / "trajectories").glob("*.jsonl")
    return sum(
        json.loads(line)["outcome"] == "failed" for file in files for line in file.read_text().splitlines()
    )
