"""Trajectories on disk: played once, then read by people, replayed or trained on.

One JSON object a line, words before numbers; reading gives back exactly what was written, log-probs to the last bit.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from torch.utils.data import Dataset

from drmas_pl.algorithms.token_batch import TokenBatch, TrainingRow, collate
from drmas_pl.data.files import locate, parse_line, write_json_lines
from drmas_pl.errors import DataError
from drmas_pl.parsing import Parsed
from drmas_pl.types import Task, Trajectory, Turn

FORMAT: Final = 3
_READABLE: Final = (1, 2, FORMAT)
_LOGGER = logging.getLogger(__name__)
_NUMBERS: Final = ("prompt_ids", "response_ids", "logprobs")
# what most turns do not have would only lengthen the file
_LEFT_OUT: Final[Mapping[str, Any]] = {
    "own_reward": 0.0,
    "move": None,
    "moved_with": (),
    "advantage": None,
    "prompt": None,
    "candidate": None,
    "parent": None,
    "later_versions": (),
}


class TrajectoryWriter:
    """Appends trajectories to a file, each in one write, so that a crash costs at most the last line.

    Several writers may append to one file at the same time. Use it as a context manager, or call :meth:`close`.

    Args:
        path: JSON Lines file; made if missing. An unfinished last line, left by a crash, is removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished_line(self.path)
        self._file = self.path.open("ab", buffering=0)

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory.

        Raises:
            DataError: Its metadata cannot be written as JSON.
        """
        self._file.write(json.dumps(encode(trajectory), ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_trajectories(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> None:
    """Write a whole file, all or nothing, in place of any earlier one.

    Args:
        path: JSON Lines file.
        trajectories: What to record.

    """
    write_json_lines(path, (encode(trajectory) for trajectory in trajectories))


def read_trajectories(path: str | os.PathLike[str]) -> list[Trajectory]:
    """Read what was recorded; an unfinished last line, left by a crash, is skipped with a warning.

    Args:
        path: JSON Lines file.

    Raises:
        DataError: The file is missing, or a line is not a recorded trajectory.
    """
    file = locate(path)
    found = []
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            place = f"{file}, line {number}"
            if not line.endswith(b"\n"):
                _LOGGER.warning("%s is unfinished and was skipped", place)
            elif line.strip():
                found.append(decode(parse_line(line, place), place))
    return found


def json_like(value: Any) -> Any:
    """Return ``value`` as near as JSON allows.

    >>> json_like({1: (2, {3})})
    {'1': [2, '{3}']}
    """
    if isinstance(value, Mapping):
        return {str(key): json_like(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_like(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else repr(value)


def encode(trajectory: Trajectory) -> dict[str, Any]:
    """Turn a trajectory into a JSON-like record.

    Everything comes back as it was but metadata that JSON does not know: tuples come back as lists, other objects as their ``repr``.
    """
    task = trajectory.task
    metadata = json_like(dict(task.metadata))
    return {
        "format": FORMAT,
        "question": task.question,
        "reference": list(task.reference),
        **{
            field.name: getattr(trajectory, field.name)
            for field in fields(Trajectory)
            if field.name not in ("task", "turns", "metrics", "rewards", "candidates")
        },
        "rewards": dict(trajectory.rewards),
        "metrics": dict(trajectory.metrics),
        "turns": [_encode_turn(turn) for turn in trajectory.turns],
        **(
            {"candidates": [_encode_turn(turn) for turn in trajectory.candidates]}
            if trajectory.candidates
            else {}
        ),
        "task": {"id": task.id, "data_source": task.data_source, "metadata": metadata},
    }


def decode(record: dict[str, Any], place: str) -> Trajectory:
    """Turn a record back into a trajectory.

    Args:
        record: What :func:`encode` made.
        place: Where it stands, for the error message.

    Raises:
        DataError: The record has another format, or an entry is missing, unknown or mistyped.
    """
    if record.get("format") not in _READABLE:
        formats = " or ".join(map(str, _READABLE))
        raise DataError(
            f"{place}: expected a recorded trajectory of format {formats}, got {record.get('format')!r}; record it anew"
        )
    values = {
        name: value for name, value in record.items() if name not in ("format", "question", "reference")
    }
    try:
        values["task"] = Task(
            question=record["question"], reference=tuple(record["reference"]), **values["task"]
        )
        for name in ("turns", "candidates"):
            values[name] = tuple(_decode_turn(turn) for turn in values.get(name, ()))
        return Trajectory(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{place}: an entry of the trajectory is missing, unknown or mistyped: {error}; record it anew"
        ) from error


class RecordedTurns(Dataset[TrainingRow]):
    """The turns of one agent as training rows, for a stock Lightning Trainer.

    Failed trajectories and turns without sampled ids are left out.

    Args:
        trajectories: Recorded play.
        agent: Whose turns.
        advantages: Advantage of each turn, as a function of trajectory and turn or as one number per entry of :attr:`turns`. None
            takes the advantages that turns were recorded with, and leaves out turns without one.

    Raises:
        ValueError: The agent has no usable turn, there are more or fewer advantages than turns, or none were given or recorded.
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        agent: str,
        *,
        advantages: Callable[[Trajectory, Turn], float] | Sequence[float] | None = None,
    ) -> None:
        self.turns = [
            (trajectory, turn)
            for trajectory in trajectories
            if not trajectory.failed
            for turn in trajectory.sampled
            if turn.agent == agent and turn.response_ids
        ]
        if not self.turns:
            names = sorted({turn.agent for trajectory in trajectories for turn in trajectory.sampled})
            raise ValueError(
                f"agent must have turns in the trajectories, got {agent!r}; there are turns of {', '.join(names) or 'nobody'}"
            )
        if advantages is None:
            advantages = self._keep_recorded(agent)
        values = [advantages(*pair) for pair in self.turns] if callable(advantages) else list(advantages)
        if len(values) != len(self.turns):
            raise ValueError(
                f"advantages must be one number for each of {len(self.turns)} turns of {agent!r}, got {len(values)}; see .turns"
            )
        self._rows = [
            TrainingRow(turn.agent, turn.prompt_ids, turn.response_ids, turn.logprobs, float(value))
            for (_, turn), value in zip(self.turns, values)
        ]

    def _keep_recorded(self, agent: str) -> list[float]:
        """Leave out turns that were recorded without an advantage, and return those of the others."""
        found = [(pair, pair[1].advantage) for pair in self.turns]
        self.turns = [pair for pair, advantage in found if advantage is not None]
        if not self.turns:
            raise ValueError(
                f"advantages must be given, got None: no turn of {agent!r} was recorded with one; a run with trainer.record=[train] does"
            )
        return [advantage for _, advantage in found if advantage is not None]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> TrainingRow:
        return self._rows[index]


def collate_rows(pad_id: int) -> Callable[[Sequence[TrainingRow]], TokenBatch]:
    """Return a ``collate_fn`` whose batches are minibatches of their own, divided as the agent's objective says.

    Args:
        pad_id: Id written where there is no token.

    >>> batch = collate_rows(0)([TrainingRow("solver", (5,), (6, 7), (-0.1, -0.2), 1.0), TrainingRow("solver", (5,), (8,), (-0.3,), -1.0)])
    >>> batch.input_ids.tolist(), batch.denominator
    ([[5, 6, 7], [5, 8, 0]], None)
    """
    return partial(collate, pad_id=pad_id, denominator=None)


def _encode_turn(turn: Turn) -> dict[str, Any]:
    parsed = {field.name: getattr(turn.parsed, field.name) for field in fields(Parsed)}
    values = {field.name: getattr(turn, field.name) for field in fields(Turn)}
    first = {"agent": turn.agent, "text": turn.text, "parsed": {**parsed, "flags": sorted(turn.parsed.flags)}}
    rest = {
        name: value
        for name, value in values.items()
        if name not in first and not (name in _LEFT_OUT and value == _LEFT_OUT[name])
    }
    return {**first, **rest}


def _decode_turn(record: dict[str, Any]) -> Turn:
    parsed = Parsed(**{**record["parsed"], "flags": frozenset(record["parsed"]["flags"])})
    lists = {name: tuple(record[name]) for name in _NUMBERS}
    lists["moved_with"] = tuple(record.get("moved_with", ()))
    lists["later_versions"] = tuple(tuple(pair) for pair in record.get("later_versions", ()))
    return Turn(**{**record, **lists, "parsed": parsed})


def _remove_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        kept = content.rfind(b"\n") + 1
        if kept < len(content):
            _LOGGER.warning("%s ended in an unfinished line, which was removed", path)
            file.truncate(kept)
