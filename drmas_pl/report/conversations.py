"""Recorded trajectories for the page: an index of all that are kept, and one line of JSON for each, which the page reads when opened.

Whole tasks are kept or left out, so that before and after, and the samples of one group, stay together: tasks are ranked by a hash of
their id, and those of the highest hash go first when the page gets too large.
"""

from __future__ import annotations

import heapq
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from drmas_pl.report.trajectory_statistics import TrajectoryStatistics
from drmas_pl.utils.foreign_files import parse_json

# Characters of one text, and sampled tokens of one turn, that a page holds.
MAX_TEXT: Final = 200_000
MAX_LOGPROBS: Final = 600
# Bytes of recorded trajectories that are read: the first and last files, and others spread evenly between them.
MAX_READ: Final = 400 * 2**20
# Failed trajectories that are kept whatever their task is.
FAILED_FIRST: Final = 20
# Bytes that the index takes for one trajectory.
INDEX_BYTES: Final = 60

OUTCOMES: Final = ("right", "wrong", "truncated", "failed")
COLUMNS: Final = (
    "task",
    "phase",
    "iteration",
    "sample",
    "outcome",
    "reward",
    "flags",
    "turns",
    "tokens",
    "agents",
)
INVALID: Final = 1
EMPTY: Final = 2
CUT: Final = 4
UNTRAINED: Final = 8


@dataclass(order=True, slots=True)
class _Kept:
    """One trajectory on the page; the heap's first is the first to go."""

    rank: int
    place: tuple[str, int, str, int, int] = field(compare=False)
    row: dict[str, Any] = field(compare=False)
    body: str = field(compare=False)
    size: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Conversations:
    """What the page holds of a run's trajectories.

    Attributes:
        rows: Entries of the index, newest first within a phase, see :data:`COLUMNS`; a task is its id, data source, question and
            references.
        bodies: Line of JSON for each row.
        statistics: Counts over everything that was read, by phase with mode, and iteration.
        agents: Agents by position: those that were named, then others that spoke.
        total: Trajectories that were read.
        unread: Files that were left out since there are too many.
    """

    rows: list[dict[str, Any]]
    bodies: list[str]
    statistics: dict[str, dict[int, TrajectoryStatistics]]
    agents: tuple[str, ...]
    total: int
    unread: int


def read_conversations(files: Sequence[Path], agents: Sequence[str], *, max_bytes: int) -> Conversations:
    """Read recorded trajectories.

    Args:
        files: Files of them, each named ``<phase>-<iteration>.jsonl``.
        agents: The team's agents, in its order.
        max_bytes: Room for bodies and index, in bytes.
    """
    names = list(agents)
    statistics: dict[str, dict[int, TrajectoryStatistics]] = {}
    heap: list[_Kept] = []
    chosen = _choose_files(files)
    total = used = failed = 0
    for file in chosen:
        for number, record in enumerate(_records(file)):
            phase, iteration = _origin(record, file)
            task = _task_id(record)
            own = statistics.setdefault(phase, {}).setdefault(iteration, TrajectoryStatistics())
            try:
                own.add(record, task)
                row, body = _compact(record, phase, iteration, names)
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
            total += 1
            failed += row["outcome"] == OUTCOMES.index("failed")
            first = row["outcome"] == OUTCOMES.index("failed") and failed <= FAILED_FIRST
            rank = 0 if first else -(zlib.crc32(task.encode()) + 1)
            size = len(body.encode()) + INDEX_BYTES + 1
            place = (phase, -iteration, task, row["sample"], number)
            heapq.heappush(heap, _Kept(rank, place, row, body, size))
            used += size
            while used > max_bytes and heap:
                used -= heapq.heappop(heap).size
    kept = sorted(heap, key=lambda item: item.place)
    return Conversations(
        rows=[item.row for item in kept],
        bodies=[item.body for item in kept],
        statistics=statistics,
        agents=tuple(names),
        total=total,
        unread=len(files) - len(chosen),
    )


def escape_json(text: str) -> str:
    """Escape JSON for a script element: nothing in it can end the element or a line of it.

    >>> print(escape_json('"</script>"'))
    "\\u003c/script>"
    """
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def to_json(value: Any) -> str:
    """Return compact JSON for a script element; lone surrogates are escaped, and numbers that are not finite become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return to_json(_finite(value))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return escape_json(text)


def _finite(value: Any) -> Any:
    """Return JSON-like data with None in the place of NaN and infinity."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _choose_files(files: Sequence[Path]) -> list[Path]:
    """Leave files out where there is too much to read; of each phase the first and the last stay."""
    sizes = [file.stat().st_size for file in files]
    if sum(sizes) <= MAX_READ:
        return list(files)
    phases = [file.stem.rpartition("-")[0] for file in files]
    ends = {phases.index(phase) for phase in phases} | {
        len(phases) - 1 - phases[::-1].index(phase) for phase in phases
    }
    room = MAX_READ - sum(sizes[place] for place in ends)
    chosen = set(ends)
    # the same bits in reverse order spread the places evenly, however many there is room for
    width = len(files).bit_length()
    for place in sorted(range(len(files)), key=lambda number: int(f"{number:0{width}b}"[::-1], 2)):
        if place not in chosen and sizes[place] <= room:
            chosen.add(place)
            room -= sizes[place]
    return [files[place] for place in sorted(chosen)]


def _records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file; one that is being written, or was cut by a crash, is left out."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = parse_json(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _origin(record: Mapping[str, Any], file: Path) -> tuple[str, int]:
    """Return the phase, with the mode for greedy evaluations, and the iteration; from the file's name where the record lacks them."""
    named, _, number = file.stem.rpartition("-")
    phase = str(record.get("phase") or named)
    iteration = record.get("iteration")
    if not isinstance(iteration, int):
        iteration = int(number) if number.isdigit() else 0
    greedy = record.get("mode") == "greedy" and phase != "train"
    return f"{phase}-greedy" if greedy else phase, iteration


def _task_id(record: Mapping[str, Any]) -> str:
    return str((record.get("task") or {}).get("id") or record.get("question") or "")


def _outcome(record: Mapping[str, Any]) -> int:
    outcome = record.get("outcome")
    if outcome in ("failed", "truncated"):
        return OUTCOMES.index(outcome)
    return OUTCOMES.index("right" if record.get("success") else "wrong")


def _compact(
    record: Mapping[str, Any], phase: str, iteration: int, names: list[str]
) -> tuple[dict[str, Any], str]:
    """Return a trajectory's index entry and its body: cause, metrics, turns, rewards of single agents, and candidates of a tree."""
    turns = record.get("turns") or []
    flags = spoke = tokens = 0
    for turn in turns:
        if turn["agent"] not in names:
            names.append(turn["agent"])
        spoke |= 1 << names.index(turn["agent"])
        flags |= _flags(turn, phase)
        tokens += len(turn.get("response_ids") or ())
    task = record.get("task") or {}
    row = {
        "task": (
            _task_id(record),
            str(task.get("data_source") or ""),
            str(record.get("question") or "")[:MAX_TEXT],
            tuple(str(item)[:2000] for item in record.get("reference") or ())[:20],
        ),
        "phase": phase,
        "iteration": iteration,
        "sample": int(record.get("sample") or 0),
        "outcome": _outcome(record),
        "reward": _round(record.get("reward") or 0.0),
        "flags": flags,
        "turns": len(turns),
        "tokens": tokens,
        "agents": spoke,
    }
    metrics = [[name, _round(value)] for name, value in (record.get("metrics") or {}).items()]
    observed = [str(record.get("question") or ""), *(str(turn.get("observation") or "") for turn in turns)]
    said = [
        _compact_turn(turn, names, new="" if observed[place] == observed[place + 1] else observed[place + 1])
        for place, turn in enumerate(turns)
    ]
    rewards = [[name, _round(value)] for name, value in (record.get("rewards") or {}).items()]
    candidates = [_compact_turn(turn, names, new="") for turn in record.get("candidates") or ()]
    return row, to_json([record.get("cause"), metrics, said, rewards, candidates])


def _compact_turn(turn: Mapping[str, Any], names: list[str], *, new: str) -> list[Any]:
    """Return a turn as the page reads it, see ``readTurn`` in page.js.

    Args:
        turn: As it was recorded.
        names: Agents by position.
        new: What was observed since the turn before.
    """
    parsed = turn.get("parsed") or {}
    text = str(turn.get("text") or "")
    action = parsed.get("action") or None
    logprobs = [_round(value) for value in list(turn.get("logprobs") or ())[:MAX_LOGPROBS]]
    prompt = turn.get("prompt")
    return [
        names.index(turn["agent"]),
        text[:MAX_TEXT],
        parsed.get("status", "valid"),
        None if action is None or action == text else str(action)[:MAX_TEXT],
        parsed.get("verdict"),
        parsed.get("reason") or None,
        turn.get("finish_reason"),
        new[:MAX_TEXT] or None,
        _round(turn.get("reward") or 0.0),
        _round(turn.get("local_reward") or 0.0),
        _round(turn.get("advantage")),
        None if prompt is None else str(prompt)[:MAX_TEXT],
        len(turn.get("prompt_ids") or ()),
        len(turn.get("response_ids") or ()),
        logprobs,
        int(bool(turn.get("prompt_truncated"))),
        _round(turn.get("own_reward") or 0.0),
        turn.get("move"),
        turn.get("index"),
        turn.get("candidate"),
        turn.get("parent"),
    ]


def _flags(turn: Mapping[str, Any], phase: str) -> int:
    valid = (turn.get("parsed") or {}).get("status", "valid") == "valid"
    return (
        (0 if valid else INVALID)
        | (0 if str(turn.get("text") or "").strip() else EMPTY)
        | (CUT if turn.get("finish_reason") == "length" else 0)
        | (UNTRAINED if phase == "train" and turn.get("advantage") is None else 0)
    )


def _round(value: Any) -> float | int | None:
    """Shorten a number to three decimals; None for what is no finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    short = round(float(value), 3)
    return int(short) if short == int(short) else short


def index_columns(rows: Iterable[Mapping[str, Any]], runs: Sequence[int]) -> dict[str, Any]:
    """Return the index by column, with tables of tasks and phases that the columns point into.

    Args:
        rows: Entries of all runs.
        runs: Position of each entry's run.
    """
    tasks: dict[Any, int] = {}
    phases: dict[str, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in rows:
        for name in COLUMNS:
            value = row[name]
            if name == "task":
                value = tasks.setdefault(value, len(tasks))
            elif name == "phase":
                value = phases.setdefault(value, len(phases))
            columns[name].append(value)
    return {"run": list(runs), **columns, "tasks": list(tasks), "phases": list(phases)}
