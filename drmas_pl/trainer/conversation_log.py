"""Some conversations of every validation, given to loggers that can show text or tables.

The same tasks are shown each time, so that what a team says to them can be compared over the run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Final

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from drmas_pl.types import Trajectory

log = logging.getLogger(__name__)
# Tasks that are shown, and characters of an utterance.
TASKS: Final = 6
CHARACTERS: Final = 4000
COLUMNS: Final = ("iteration", "task", "question", "conversation", "outcome", "success", "reward")


def log_conversations(loggers: Sequence[Logger], trajectories: Sequence[Trajectory], *, step: int) -> None:
    """Show one conversation of each of a few tasks; a logger that fails costs a warning, not the run.

    Args:
        loggers: Lightning loggers.
        trajectories: What was played in a validation.
        step: Completed iterations.
    """
    shown = choose_conversations(trajectories)
    for logger in loggers:
        try:
            _log(logger, shown, step)
        except Exception as error:
            log.warning("%s took no conversations: %s", type(logger).__name__, error)


def choose_conversations(trajectories: Sequence[Trajectory], tasks: int = TASKS) -> list[Trajectory]:
    """Return the first sampled trajectory of each of a few tasks, which are the same for every validation.

    Args:
        trajectories: What was played.
        tasks: How many.
    """
    first: dict[str, Trajectory] = {}
    for trajectory in trajectories:
        first.setdefault(trajectory.task.id, trajectory)
    names = sorted(first, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8).digest())
    return [first[name] for name in names[:tasks]]


def as_markdown(trajectory: Trajectory) -> str:
    """Return a conversation as Markdown; what was said stands in code blocks, so that none of it is markup.

    Args:
        trajectory: What was played.
    """
    parts = [_block(trajectory.task.question)]
    seen = trajectory.task.question
    for turn in trajectory.turns:
        if turn.observation and turn.observation != seen:
            parts += ["environment", _block(turn.observation)]
            seen = turn.observation
        status = "" if turn.parsed.valid else f" ({turn.parsed.status})"
        parts += [f"**{turn.agent}**{status}", _block(turn.text)]
    parts.append(f"{_outcome(trajectory)}, reward {trajectory.reward:g}")
    return "\n\n".join(parts)


def as_row(trajectory: Trajectory, step: int) -> list[Any]:
    """Return a conversation as the row of a table, see ``COLUMNS``.

    Args:
        trajectory: What was played.
        step: Completed iterations.
    """
    said = "\n\n".join(f"{turn.agent}: {_cut(turn.text)}" for turn in trajectory.turns)
    return [
        step,
        trajectory.task.id,
        _cut(trajectory.task.question),
        said,
        _outcome(trajectory),
        trajectory.success,
        trajectory.reward,
    ]


def _log(logger: Logger, trajectories: Sequence[Trajectory], step: int) -> None:
    rows = [as_row(trajectory, step) for trajectory in trajectories]
    if isinstance(logger, TensorBoardLogger):
        for trajectory in trajectories:
            logger.experiment.add_text(f"conversations/{trajectory.task.id}", as_markdown(trajectory), step)
    elif isinstance(logger, WandbLogger):
        logger.log_table("conversations", columns=list(COLUMNS), data=rows, step=step)
    elif isinstance(logger, MLFlowLogger):
        # a table is one artifact, to which rows are added
        table = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
        logger.experiment.log_table(logger.run_id, table, "conversations.json")


def _outcome(trajectory: Trajectory) -> str:
    return "solved" if trajectory.success else trajectory.outcome


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"


def _block(text: str) -> str:
    """Return a code block: indented, so that no sequence of letters ends it."""
    return "\n".join(f"    {line}" for line in (_cut(text).splitlines() or [""]))
