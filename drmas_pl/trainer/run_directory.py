"""The run folder: everything a run leaves behind, each file whole at any moment, and what is added to trajectories that are kept there."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from drmas_pl.agent import Agent
from drmas_pl.algorithms.estimators import TokenAdvantages
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.report.run_page import write_page
from drmas_pl.tokens import decode
from drmas_pl.trainer.plot import plot_run
from drmas_pl.types import Trajectory
from drmas_pl.utils.atomic import write_atomically
from drmas_pl.utils.storage import writing

log = logging.getLogger(__name__)


class RunDirectory:
    """Paths and small files of one run; what writes raises :class:`~drmas_pl.errors.StorageError` where it cannot.

    ::

        config.yaml  summary.json  metrics.jsonl  plot.png  report.html  failures.log
        checkpoints/  trajectories/  logs/  skipped/

    Args:
        path: Folder of the run; created when first written to.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """JSON records of metrics: one per iteration, and one per validation."""
        return self.path / "metrics.jsonl"

    @property
    def resume_command(self) -> str:
        """The command that goes on with the run, as a shell takes it."""
        return f"python tools/train.py {shlex.quote(f'resume={self.path}')}"

    @property
    def failures(self) -> Path:
        """Tracebacks of trajectories that failed, if any did."""
        return self.path / "failures.log"

    @property
    def plot(self) -> Path:
        """The learning curve."""
        return self.path / "plot.png"

    @property
    def page(self) -> Path:
        """The page that shows the run in a browser."""
        return self.path / "report.html"

    def trajectories(self, phase: str, iteration: int) -> Path:
        """File of the trajectories recorded in one phase."""
        return self.path / "trajectories" / f"{phase}-{iteration:06d}.jsonl"

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        with writing("the metrics", self.metrics):
            self.path.mkdir(parents=True, exist_ok=True)
            with self.metrics.open("a") as file:
                file.write(json.dumps(record) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all records, oldest first; a line cut by a crash is left out."""
        if not self.metrics.exists():
            return []
        records = []
        for line in self.metrics.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
        return records

    def rewind_metrics(self, iteration: int, *, validated: bool) -> None:
        """Drop records that a run resumed at ``iteration`` will write again: later ones, and its validation unless ``validated``."""
        kept = [
            record
            for record in self.read_metrics()
            if record["iteration"] < iteration
            or (record["iteration"] == iteration and (validated or "time/validation" not in record))
        ]
        if self.metrics.exists():
            with writing("the metrics", self.metrics):
                write_atomically(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        path = self.path / "summary.json"
        with writing("the summary", path):
            write_atomically(path, json.dumps(summary, indent=1) + "\n")

    def write_report(self, agents: Sequence[str], title: str) -> None:
        """Write ``plot.png`` from the recorded metrics, and ``report.html`` from all files of the run."""
        with writing("the plot", self.plot):
            plot_run(self.read_metrics(), self.plot, agents=agents, title=title)
        self._write_page()

    def _write_page(self) -> None:
        """Write ``report.html``; whatever a file holds, a page that cannot be made never costs a run that has ended."""
        try:
            with writing("the page", self.page):
                write_page([self.path], self.page)
        except Exception:
            log.exception("%s could not be made; make it later with: drmas-report %s", self.page, self.path)


def with_advantages(
    trajectories: Sequence[Trajectory],
    turn_batch: TurnBatch,
    advantage: Tensor | TokenAdvantages,
    *,
    iteration: int,
) -> Iterator[Trajectory]:
    """Yield training trajectories whose turns carry what the estimator gave them.

    Args:
        trajectories: What was played.
        turn_batch: N turns of them; the others carry nothing.
        advantage: (N,) advantages, or those of tokens, of which the mean per turn counts here.
        iteration: Iteration that learnt from them, counted from 1.
    """
    values = (advantage.row if isinstance(advantage, TokenAdvantages) else advantage).tolist()
    # a batch holds the very turns of the trajectories, and equal turns may have different advantages
    given = {
        id(turn): value
        for turn, value, trained in zip(turn_batch.turns, values, turn_batch.trained.tolist(), strict=True)
        if trained
    }
    for trajectory in trajectories:
        turns = tuple(replace(turn, advantage=given.get(id(turn))) for turn in trajectory.turns)
        yield replace(trajectory, turns=turns, phase="train", iteration=iteration)


def with_prompts(trajectories: Iterable[Trajectory], agents: Mapping[str, Agent]) -> Iterator[Trajectory]:
    """Yield trajectories whose turns carry the text of their prompts, special tokens included.

    Args:
        trajectories: What was played.
        agents: The agents that spoke, by name.
    """
    for trajectory in trajectories:
        turns = tuple(
            replace(turn, prompt=decode(agents[turn.agent].tokenizer, turn.prompt_ids))
            for turn in trajectory.turns
        )
        yield replace(trajectory, turns=turns)
