"""Cases with a verdict, counted by kind."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PASSED: Final = "passed"


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


def judge(
    part: str, cases: Iterable[str], try_case: Callable[[str, Path], Iterable[str]]
) -> Iterator[Verdict]:
    """Try every case in a folder of its own, and yield what came of it."""
    for case in cases:
        with scratch() as folder:
            yield Verdict(part, case, tuple(try_case(case, folder)))


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
