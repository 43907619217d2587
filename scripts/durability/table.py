"""Cases with a verdict, counted by kind."""

from __future__ import annotations

import functools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one case.

    Attributes:
        part: Row of the table, such as ``kill -9, shared``.
        case: What was done.
        faults: What must not have happened; none for a case that passed.
    """

    part: str
    case: str
    faults: tuple[str, ...] = ()


def table(verdicts: Sequence[Verdict]) -> str:
    """Return counts by part, and every case that failed.

    >>> print(table([Verdict("kills", "a"), Verdict("kills", "b", ("traceback",))]))
    part    cases  passed  failed
    -----------------------------
    kills       2       1       1
    all         2       1       1
    <BLANKLINE>
    kills, b: traceback
    """
    from drmas_pl.config.report import aligned

    counts = Counter(verdict.part for verdict in verdicts)
    failed = Counter(verdict.part for verdict in verdicts if verdict.faults)
    rows = [
        (part, str(count), str(count - failed[part]), str(failed[part])) for part, count in counts.items()
    ]
    total, wrong = sum(counts.values()), sum(failed.values())
    rows.append(("all", str(total), str(total - wrong), str(wrong)))
    lines = aligned([("part", "cases", "passed", "failed"), *rows])
    told = [f"{item.part}, {item.case}: {'; '.join(item.faults)}" for item in verdicts if item.faults]
    return "\n".join([*lines, *([""] if told else []), *told])


@dataclass(frozen=True, slots=True)
class Trial:
    """One case that has not been tried yet.

    Attributes:
        part: Row of the table.
        case: What is done.
        attempt: Does it in the folder that it is given, and returns what must not have happened.
    """

    part: str
    case: str
    attempt: Callable[[Path], Iterable[str]]

    def judge(self) -> Verdict:
        """Try the case in a folder of its own."""
        with scratch() as folder:
            return Verdict(self.part, self.case, tuple(self.attempt(folder)))


def trials(part: str, cases: Iterable[str], attempt: Callable[[str, Path], Iterable[str]]) -> Iterator[Trial]:
    """Yield the cases of a part."""
    for case in cases:
        yield Trial(part, case, functools.partial(attempt, case))


class Record:
    """Verdicts in a file, by which the cases of a long program are tried in several calls.

    Args:
        file: One JSON object per line; None keeps them for this call alone.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                record = json.loads(line)
                self._keep(Verdict(record["part"], record["case"], tuple(record["faults"])))

    @property
    def verdicts(self) -> list[Verdict]:
        """The last verdict on every case, in the order in which cases were first tried."""
        return list(self._verdicts.values())

    def has_passed(self, trial: Trial) -> bool:
        """Tell whether a case was tried and nothing was wrong with it; those that failed are tried again."""
        found = self._verdicts.get((trial.part, trial.case))
        return found is not None and not found.faults

    def add(self, verdict: Verdict) -> None:
        """Keep a verdict."""
        self._keep(verdict)
        if self._file is not None:
            with self._file.open("a") as stream:
                stream.write(json.dumps(asdict(verdict)) + "\n")

    def _keep(self, verdict: Verdict) -> None:
        self._verdicts[verdict.part, verdict.case] = verdict


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="durability-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def spread(count: int, total: int) -> list[int]:
    """Return at most ``count`` numbers from 1 to ``total`` at even distances.

    >>> spread(3, 10), spread(9, 2)
    ([1, 6, 10], [1, 2])
    """
    if count >= total:
        return list(range(1, total + 1))
    if count == 1:
        return [(total + 1) // 2]
    return sorted({1 + round(index * (total - 1) / (count - 1)) for index in range(count)})
