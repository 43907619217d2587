"""The run folder: everything a run leaves behind, each file whole at any moment, and what is added to trajectories that are kept there."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from drmas_pl.agent import Agent
from drmas_pl.algorithms.estimators import TokenAdvantages
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.errors import CheckpointError, StorageError
from drmas_pl.report.run_page import write_page
from drmas_pl.tokens import decode
from drmas_pl.trainer.checkpoint import find_checkpoint
from drmas_pl.trainer.plot import plot_run
from drmas_pl.types import Trajectory
from drmas_pl.utils.atomic import write_atomically
from drmas_pl.utils.folder_lock import FolderLock
from drmas_pl.utils.manifest import read_manifest
from drmas_pl.utils.storage import writing

log = logging.getLogger(__name__)


class RunDirectory:
    """Paths and small files of one run; what writes raises :class:`~drmas_pl.errors.StorageError` where it cannot.

    ::

        config.yaml  summary.json  metrics.jsonl  plot.png  report.html  failures.log  run.lock
        checkpoints/  trajectories/  logs/  rollouts/  skipped/

    Args:
        path: Folder of the run; created when first written to.

    Attributes:
        lock: Held by the process that trains; reading needs none.
        has_begun_before: Whether an earlier start, of which nothing was saved, has left logs.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lock = FolderLock(self.path)
        self.has_begun_before = False
        self._given_up: set[str] = set()

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

    def waterfall(self, iteration: int) -> Path:
        """File of the picture of an iteration's rollout."""
        return self.path / "rollouts" / f"{iteration:06d}.png"

    def trajectories(self, phase: str, iteration: int) -> Path:
        """File of the trajectories recorded in one phase."""
        return self.path / "trajectories" / f"{phase}-{iteration:06d}.jsonl"

    @contextmanager
    def optional(self, what: str, path: Path) -> Iterator[None]:
        """Go on without something that cannot be written, and say so once.

        Args:
            what: What it is, such as ``the trajectories``.
            path: Where it goes.
        """
        try:
            with writing(what, path):
                yield
        except StorageError as error:
            if what not in self._given_up:
                log.warning("%s; the run goes on without them", error)
            self._given_up.add(what)

    def newest_checkpoint(self) -> int | None:
        """Return the iteration that the run would go on from; None if it has to start again."""
        try:
            return read_manifest(find_checkpoint(self.path)).iteration
        except (CheckpointError, OSError):
            return None

    def concerns(self, error: OSError) -> bool:
        """Tell whether an error of the operating system is about a file of the run."""
        names = [
            Path(os.fsdecode(name))
            for name in (error.filename, error.filename2)
            if isinstance(name, (str, bytes))
        ]
        here = self.path.resolve()
        return any(name.resolve().is_relative_to(here) for name in names)

    def drop_leftovers(self) -> None:
        """Delete what crashes have left of files that were being written; only for who holds the lock."""
        for folder in (self.path, self.path / "trajectories", self.checkpoints):
            for file in folder.glob(".writing-*") if folder.is_dir() else ():
                if file.is_file() and not file.is_symlink():
                    file.unlink()

    def set_metrics_aside(self) -> None:
        """Rename the metrics of a start that never saved anything, so that those of the next one begin anew."""
        if not self.metrics.exists():
            return
        names = (
            self.path / f"metrics-discarded{number}.jsonl"
            for number in itertools.chain([""], map("-{}".format, itertools.count(2)))
        )
        target = next(path for path in names if not path.exists())
        with writing("the metrics", target):
            os.replace(self.metrics, target)
        self.has_begun_before = True
        log.warning(
            "%s holds a run that was never saved and begins again; its metrics are kept as %s",
            self.path,
            target.name,
        )

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        self.lock.check()
        _refuse_pipe("the metrics", self.metrics)
        with writing("the metrics", self.metrics):
            self.path.mkdir(parents=True, exist_ok=True)
            with self.metrics.open("a") as file:
                file.write(json.dumps(record) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all records, oldest first; what is none, such as a line cut by a crash, is left out."""
        if not self.metrics.is_file():
            return []
        records = []
        for line in self.metrics.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and isinstance(record.get("iteration"), int):
                records.append(record)
        return records

    def rewind_metrics(self, iteration: int, *, validated: bool) -> None:
        """Drop records that a run resumed at ``iteration`` will write again: later ones, and its validation unless ``validated``."""
        kept = [
            record
            for record in self.read_metrics()
            if record["iteration"] < iteration
            or (record["iteration"] == iteration and (validated or "time/validation" not in record))
        ]
        if self.metrics.is_file():
            with writing("the metrics", self.metrics):
                write_atomically(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        path = self.path / "summary.json"
        _refuse_pipe("the summary", path)
        with writing("the summary", path):
            write_atomically(path, json.dumps(summary, indent=1) + "\n")

    def summarizes(self, summary: Mapping[str, Any]) -> bool:
        """Tell whether the files that sum a run up are all there, and of this state of it."""
        path = self.path / "summary.json"
        try:
            there = json.loads(path.read_text()) if path.is_file() else None
        except (OSError, ValueError, RecursionError):
            return False
        lasting = ("iterations", "before", "after", "before_greedy", "after_greedy", "best")
        is_same = isinstance(there, dict) and all(there.get(name) == summary[name] for name in lasting)
        return is_same and self.plot.exists() and self.page.exists()

    def write_report(self, agents: Sequence[str], title: str) -> None:
        """Write ``plot.png`` from the recorded metrics, and ``report.html`` from all files of the run."""
        with self.optional("the plot", self.plot):
            plot_run(self.read_metrics(), self.plot, agents=agents, title=title)
        self._write_page()

    def _write_page(self) -> None:
        """Write ``report.html``; whatever a file holds, a page that cannot be made never costs a run that has ended."""
        try:
            with self.optional("the page", self.page):
                write_page([self.path], self.page)
        except Exception:
            log.exception("%s could not be made; make it later with: drmas-report %s", self.page, self.path)


def _refuse_pipe(what: str, path: Path) -> None:
    """Raise StorageError where a named pipe has the name of a file, since its reader would be waited for."""
    if path.is_fifo():
        raise StorageError(f"{what} cannot be written to {path}: it is a named pipe; delete it")


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
        candidates = tuple(replace(turn, advantage=given.get(id(turn))) for turn in trajectory.candidates)
        chosen = {(turn.index, turn.parent, turn.candidate): turn.advantage for turn in candidates}
        turns = tuple(
            replace(
                turn,
                advantage=chosen.get((turn.index, turn.parent, turn.candidate), given.get(id(turn))),
            )
            for turn in trajectory.turns
        )
        yield replace(trajectory, turns=turns, candidates=candidates, phase="train", iteration=iteration)


def with_prompts(trajectories: Iterable[Trajectory], agents: Mapping[str, Agent]) -> Iterator[Trajectory]:
    """Yield trajectories whose turns carry the text of their prompts, special tokens included.

    Args:
        trajectories: What was played.
        agents: The agents that spoke, by name.
    """
    for trajectory in trajectories:
        turns, candidates = (
            tuple(
                replace(turn, prompt=decode(agents[turn.agent].tokenizer, turn.prompt_ids)) for turn in said
            )
            for said in (trajectory.turns, trajectory.candidates)
        )
        yield replace(trajectory, turns=turns, candidates=candidates)
