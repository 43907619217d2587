"""Which rows of a collection are trained: tasks with learning signal, and equally many turns of sub-agents per trajectory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.functional.diagnostics import has_signal
from drmas_pl.functional.grouping import align_rows, group_ids


def tasks_with_signal(table: TurnBatch) -> set[str]:
    """Return the ids of tasks on which some agent's scores differ; the others teach nothing.

    References:
        Yu et al., 2025 (DAPO), dynamic sampling, arXiv:2503.14476.
    """
    signal = has_signal(table.score, table.scope(("task", "agent")))
    return {table.tasks[row] for row in signal.nonzero().flatten().tolist()}


def aligned_rows(table: TurnBatch, turns: Mapping[str, int], *, seed: int) -> Tensor:
    """Choose rows so that every trajectory trains equally many turns of the named agents; apply it after normalising.

    Args:
        table: N rows.
        turns: D by agent name: turns per trajectory that called the agent; more are dropped and fewer repeated, at random.
        seed: Decides which.

    Returns:
        (M,) row numbers, those of agents that are not named untouched.

    Raises:
        ValueError: An agent is unknown.

    References:
        Hong et al., 2025 (M-GRPO), trajectory alignment, arXiv:2511.13288.
    """
    unknown = sorted(set(turns) - set(table.names))
    if unknown:
        raise ValueError(f"align_turns must name agents out of {list(table.names)}, got {unknown}")
    generator = torch.Generator().manual_seed(seed % (1 << 63))
    kept = []
    for place, name in enumerate(table.names):
        rows = ((table.agent == place) & table.trained).nonzero().flatten()
        if name in turns and len(rows):
            rows = rows[align_rows(group_ids(table.trajectory[rows]), turns[name], generator=generator)]
        kept.append(rows)
    return torch.cat(kept) if kept else torch.zeros(0, dtype=torch.int64)
