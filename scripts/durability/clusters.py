"""Runs with processes of their own, on Ray or behind an sglang server, that are killed after some time; they take minutes each."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from scripts.durability.compare import differences
from scripts.durability.kills import continuation
from scripts.durability.table import Trial, trials
from scripts.durability.toy import WORDS

FORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "ray": ("cluster=ray", "cluster.ranks=1"),
    "sglang": ("engine=sglang",),
}
MARK: Final = "DRMAS_DURABILITY"
_SIGNALS: Final[Mapping[str, signal.Signals]] = {"-9": signal.SIGKILL, "TERM": signal.SIGTERM}
# how long servers and Ray may take to notice that the program has ended
_ORPHAN_SECONDS: Final = 60.0


def kill(form: str, place: Path, shares: Sequence[float] = (0.5, 0.7, 0.9)) -> Iterator[Trial]:
    """Yield kills after shares of the time that a whole run takes; none where the package is not installed.

    The run that nothing happens to is played in ``place`` when it is first needed.
    """
    if form == "ray" and find_spec("ray") is None:
        return
    words = [*WORDS, *FORMS[form]]
    whole = functools.cache(lambda: _play_whole(words, place))
    for name in _SIGNALS:
        cases = [f"after {share:.0%} of the time" for share in shares]
        yield from trials(f"kill {name}, {form}", cases, functools.partial(_try, whole, name, words))


def _play_whole(words: Sequence[str], place: Path) -> tuple[Path, float]:
    """Play a run that nothing happens to, and return its folder and the seconds that it took.

    Raises:
        RuntimeError: It did not end well.
    """
    began = time.monotonic()
    code, text = _train([*words, f"output_dir={place / 'whole'}"], place)
    if code != 0:
        raise RuntimeError(f"the run without faults ended with {code}: {text[-3000:]}")
    return place / "whole", time.monotonic() - began


def _try(
    whole: Callable[[], tuple[Path, float]], name: str, words: Sequence[str], case: str, folder: Path
) -> Iterable[str]:
    expected, seconds = whole()
    after = seconds * int(case.split()[1].rstrip("%")) / 100
    target = folder / "run"
    mine = [*words, f"output_dir={target}"]
    code, text = _train(mine, folder, number=_SIGNALS[name], after=after)
    faults = ["traceback"] if "Traceback" in text else []
    orphans = _await_orphans(str(folder))
    faults += [f"{orphans} orphans"] if orphans else []
    if code not in (-9, 143, 0):
        faults.append(f"exit code {code} ({text[-300:]!r})")
    code, text = _train(continuation(target, mine), folder)
    faults += [] if code == 0 else [f"going on ended with {code} ({text[-300:]!r})"]
    return [*faults, *differences(target, expected)]


def _train(
    words: Sequence[str], folder: Path, *, number: signal.Signals | None = None, after: float = 0.0
) -> tuple[int, str]:
    """Run the program, send it a signal after some time, and return exit code and output."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, MARK: str(folder), "PYTHONPATH": root}
    output = folder / "output.txt"
    with output.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "drmas_pl", "train", *words],
            cwd=folder,
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            process.wait(after if number is not None else 900)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL if number is None else number)
        process.wait(900)
    return process.returncode, output.read_text(errors="replace")


def _await_orphans(mark: str) -> int:
    """Count processes that a program has left behind, by an environment variable that they inherit, and end them."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.5)
    for process in found:
        os.kill(process, signal.SIGKILL)
    return len(found)


def _marked(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
