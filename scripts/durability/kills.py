"""Runs that are killed, terminated or stopped at any of their file operations, and go on as if nothing had been."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.durability.compare import differences, leftovers
from scripts.durability.file_operations import at_operation, count_operations
from scripts.durability.process import Outcome, program, run
from scripts.durability.table import Trial, spread, trials
from scripts.durability.toy import FORMS, WORDS

SIGNALS: Final[Mapping[str, signal.Signals]] = {
    "-9": signal.SIGKILL,
    "TERM": signal.SIGTERM,
    "STOP": signal.SIGSTOP,
}
# How a process may end that was sent a signal: after STOP it goes on, and TERM after the last iteration changes nothing.
_CODES: Final[Mapping[str, tuple[int, ...]]] = {"-9": (-9,), "TERM": (143, 0), "STOP": (0,)}


@dataclass(frozen=True, slots=True)
class Reference:
    """A run that nothing happened to.

    Attributes:
        folder: Its folder.
        words: What it was started with.
        operations: Its file operations, in order.
    """

    folder: Path
    words: Sequence[str]
    operations: Sequence[str]


def play_reference(form: str, folder: Path) -> Reference:
    """Play a run that nothing happens to.

    Raises:
        RuntimeError: It did not end well.
    """
    words = [*WORDS, *FORMS[form]]
    record = folder / "operations"
    target = folder / "whole"
    outcome = run(
        program([*words, f"output_dir={target}"]), prepare=count_operations(target, record), folder=folder
    )
    if outcome.code != 0 or outcome.faults:
        raise RuntimeError(f"the run without faults did not end well:\n{outcome.text[-3000:]}")
    return Reference(target, words, record.read_text().splitlines())


def kill(form: str, points: Mapping[str, int], place: Path) -> Iterator[Trial]:
    """Yield kills of runs of one form.

    Args:
        form: Key of :data:`~scripts.durability.toy.FORMS`.
        points: Number of moments by key of :data:`SIGNALS`.
        place: Folder for the run that nothing happens to, which is played when it is first needed.
    """
    reference = functools.cache(lambda: play_reference(form, place))
    for name, count in points.items():
        moments = [f"{number} of {count}" for number in range(1, count + 1)]
        yield from trials(f"kill {name}, {form}", moments, functools.partial(_try_moment, reference, name))


def _try_moment(play: Callable[[], Reference], name: str, moment: str, folder: Path) -> Iterator[str]:
    """Kill a run at one of as many moments, which are spread over its file operations, and go on with it."""
    reference = play()
    target = folder / "run"
    index, count = map(int, moment.split(" of "))
    operation = spread(count, len(reference.operations))[index - 1]

    def act() -> None:
        os.kill(os.getpid(), SIGNALS[name])

    words = [*reference.words, f"output_dir={target}"]
    first = run(program(words), prepare=at_operation(target, operation, act), folder=folder)
    faults = [*first.faults, *_wrong_end(first, name)]
    if name != "-9":
        # a lock whose removal was interrupted is taken over by the next process
        faults += [fault for fault in leftovers(target) if "run.lock" not in fault]
    faults += finish(target, words, folder)
    faults += differences(target, reference.folder)
    yield from (f"{fault} (at {reference.operations[operation - 1]})" for fault in faults)


def _wrong_end(outcome: Outcome, name: str) -> list[str]:
    if outcome.code in _CODES[name]:
        return []
    return [f"exit code {outcome.code} ({outcome.text[-300:]!r})"]


def finish(target: Path, words: Sequence[str], folder: Path) -> list[str]:
    """Go on with a run until it has ended, as a scheduler would; return what went wrong."""
    outcome = run(program(continuation(target, words)), folder=folder)
    faults = list(outcome.faults)
    if outcome.code != 0:
        faults.append(f"going on ended with {outcome.code} ({outcome.error or outcome.text[-300:]!r})")
    return faults


def continuation(target: Path, words: Sequence[str]) -> list[str]:
    """Return the words that go on with a run, or start it where it had not begun."""
    if (target / "config.yaml").is_file():
        return [f"resume={target}", "trust=true"]
    return list(words)
