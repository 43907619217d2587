"""Recorded trajectories as Parquet, which ``datasets`` reads without this library.

What the columns hold is said in :mod:`drmas_pl.report.cards`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from drmas_pl.data.recorded import json_like
from drmas_pl.types import Trajectory, Turn

# Trajectories that are held and compressed at a time.
ROW_GROUP: Final = 256


def trajectory_schema() -> Any:
    """Return the Arrow schema of the table."""
    import pyarrow as pa

    turn = pa.struct(
        [
            ("agent", pa.string()),
            ("text", pa.string()),
            ("prompt", pa.string()),
            ("observation", pa.string()),
            ("status", pa.string()),
            ("action", pa.string()),
            ("finish_reason", pa.string()),
            ("reward", pa.float64()),
            ("local_reward", pa.float64()),
            ("advantage", pa.float64()),
            ("prompt_ids", pa.list_(pa.int32())),
            ("response_ids", pa.list_(pa.int32())),
            ("logprobs", pa.list_(pa.float64())),
        ]
    )
    metric = pa.struct([("name", pa.string()), ("value", pa.float64())])
    return pa.schema(
        [
            ("task_id", pa.string()),
            ("data_source", pa.string()),
            ("question", pa.string()),
            ("reference", pa.list_(pa.string())),
            ("metadata", pa.string()),
            ("phase", pa.string()),
            ("iteration", pa.int32()),
            ("sample", pa.int32()),
            ("mode", pa.string()),
            ("reward", pa.float64()),
            ("outcome", pa.string()),
            ("success", pa.bool_()),
            ("cause", pa.string()),
            ("metrics", pa.list_(metric)),
            ("turns", pa.list_(turn)),
        ]
    )


def write_parquet(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Write trajectories as they come, and return how many there were.

    Args:
        path: File to write.
        trajectories: What to write.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schema = trajectory_schema()
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _batches(map(_row, trajectories)):
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    while batch := list(islice(rows, ROW_GROUP)):
        yield batch


def _row(trajectory: Trajectory) -> dict[str, Any]:
    task = trajectory.task
    return {
        "task_id": task.id,
        "data_source": task.data_source,
        "question": task.question,
        "reference": list(task.reference),
        "metadata": json.dumps(json_like(dict(task.metadata)), ensure_ascii=False),
        "phase": trajectory.phase,
        "iteration": trajectory.iteration,
        "sample": trajectory.sample,
        "mode": trajectory.mode,
        "reward": float(trajectory.reward),
        "outcome": trajectory.outcome,
        "success": trajectory.success,
        "cause": trajectory.cause,
        "metrics": [{"name": name, "value": float(value)} for name, value in trajectory.metrics.items()],
        "turns": [_turn(turn) for turn in trajectory.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    action = turn.parsed.action
    return {
        "agent": turn.agent,
        "text": turn.text,
        "prompt": turn.prompt,
        "observation": turn.observation,
        "status": turn.parsed.status,
        "action": None if action is None else str(action),
        "finish_reason": turn.finish_reason,
        "reward": turn.reward,
        "local_reward": turn.local_reward,
        "advantage": turn.advantage,
        "prompt_ids": list(turn.prompt_ids),
        "response_ids": list(turn.response_ids),
        "logprobs": list(turn.logprobs),
    }
