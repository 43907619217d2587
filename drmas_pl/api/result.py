"""What a training run from Python leaves behind: curves, trajectories, checkpoints, and a team to talk to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drmas_pl.agent import Agent
from drmas_pl.data.recorded import read_trajectories
from drmas_pl.errors import ConfigError
from drmas_pl.rollout.play import play
from drmas_pl.team import Team
from drmas_pl.trainer.run_directory import RunDirectory
from drmas_pl.trainer.state import RunState
from drmas_pl.types import Task, Trajectory, Turn

# what stands in a row of the table beside the turn's own values
_TRAJECTORY = ("sample", "outcome", "success", "phase", "iteration")
_TURN = ("index", "agent", "text", "reward", "local_reward", "advantage", "finish_reason", "weights_version")


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run, with the agents as they are now.

    Attributes:
        team: The team around its environment.
        agents: Its agents by name, bound to the policies that were trained.
        state: Counters and evaluations of the run.
        folder: Run folder.
    """

    team: Team
    agents: Mapping[str, Agent]
    state: RunState
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """Scores before and after, calls per agent, time and memory, as in ``summary.json``."""
        return self.state.summary(self.team)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Everything that was logged: one mapping per iteration and one per validation, oldest first, each with its ``iteration``."""
        return RunDirectory(self.folder).read_metrics()

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Every metric as a list of (iteration, value); ``docs/metrics.md`` says what they mean."""
        found: dict[str, list[tuple[int, float]]] = {}
        for record in self.metrics:
            for name, value in record.items():
                if name != "iteration":
                    found.setdefault(name, []).append((record["iteration"], value))
        return found

    @property
    def best_checkpoint(self) -> Path | None:
        """Folder of the checkpoint with the best sampled validation; None where nothing was validated after training began."""
        return None if self.state.best_at is None else self._checkpoint(self.state.best_at)

    @property
    def last_checkpoint(self) -> Path | None:
        """Folder of the newest checkpoint; None where none was written."""
        return None if self.state.saved_at is None else self._checkpoint(self.state.saved_at)

    def trajectories(self, phase: str = "validation") -> list[Trajectory]:
        """Return what was recorded of a phase, ``train``, ``validation`` or ``test``, oldest first."""
        files = sorted((self.folder / "trajectories").glob(f"{phase}-*.jsonl"))
        return [trajectory for file in files for trajectory in read_trajectories(file)]

    def frame(self, phase: str = "validation") -> Any:
        """Return the recorded turns of a phase as a ``pandas.DataFrame``, one row per turn.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                "a table of trajectories needs pandas; pip install pandas, or use trajectories()"
            ) from error
        rows = [row for trajectory in self.trajectories(phase) for row in _rows(trajectory)]
        return pandas.DataFrame(rows)

    def chat(self, question: str | Task, *, greedy: bool = True, seed: int = 0) -> Trajectory:
        """Let the team answer one question; see :func:`drmas_pl.play`.

        Args:
            question: A question, or a task with a reference to be graded against.
            greedy: Take the most likely token each time, instead of sampling as the agents' settings say.
            seed: Decides the samples.
        """
        return play(self.team, self.agents, question, greedy=greedy, seed=seed)

    def __repr__(self) -> str:
        before = self.summary["before"]
        after = self.summary["after"]
        scores = "" if after is None else f", {self.summary['metric']} {before:.3f} -> {after:.3f}"
        return f"TrainingResult({self.state.iteration} iterations{scores}, folder={str(self.folder)!r})"

    def _checkpoint(self, iteration: int) -> Path:
        return RunDirectory(self.folder).checkpoints / f"iteration-{iteration:06d}"


def _rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """Yield one row per turn."""
    common: dict[str, Any] = {"task": trajectory.task.id, "team_reward": trajectory.reward}
    common |= {name: getattr(trajectory, name) for name in _TRAJECTORY}
    yield from ({**common, **_turn(turn)} for turn in trajectory.turns)


def _turn(turn: Turn) -> dict[str, Any]:
    values = {name: getattr(turn, name) for name in _TURN}
    lengths = {"prompt_tokens": len(turn.prompt_ids), "response_tokens": len(turn.response_ids)}
    return {**values, "status": turn.parsed.status, "action": turn.parsed.action, **lengths}
