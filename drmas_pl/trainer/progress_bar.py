"""The callback that shows people a running run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lightning.pytorch.callbacks import Callback

from drmas_pl.rollout.dynamic_sampling import RolloutBatch
from drmas_pl.trainer.displays import Display, choose_display
from drmas_pl.trainer.lightning_api import TrainerProperties
from drmas_pl.trainer.progress import RunProgress
from drmas_pl.trainer.terminal import conversation_text
from drmas_pl.types import Trajectory


class ProgressBar(Callback):
    """Shows how far a run is: what it does, how long it will take, scores, and every agent's newest numbers.

    In a terminal and in a notebook it is a panel that follows the run. Elsewhere it is lines: one every ``lines``-th part of the run, one
    after each validation, and one whenever none has come for ``seconds``.

    Args:
        lines: Number of lines of a whole run when there is no terminal.
        seconds: Longest time without a line there.
    """

    def __init__(self, *, lines: int = 20, seconds: float = 60.0) -> None:
        self.lines = max(lines, 1)
        self.seconds = seconds
        self._progress: RunProgress | None = None
        self._display: Display | None = None
        self._rollout_began = 0.0
        self._rollout_ended: float | None = None

    def on_fit_start(self, trainer: TrainerProperties, pl_module: Any) -> None:  # type: ignore[override]
        """Begin to show the run."""
        if not trainer.is_global_zero:
            return
        now = time.perf_counter()
        self._progress = RunProgress(
            title=title_of(trainer),
            folder=str(trainer.folder.path),
            agents=list(trainer.agents),
            total=trainer.max_iterations,
            every=trainer.evaluation.every,
            began=now,
            validates=bool(trainer.data.tasks("validation")),
            first=trainer.iteration,
            iteration=trainer.iteration,
            phase_began=now,
            evaluations=list(trainer.state.evaluations),
            best_at=trainer.state.best_at,
            validated_at=trainer.state.evaluated_at,
        )
        self._display = choose_display(self._progress, lines=self.lines, seconds=self.seconds)
        self._display.open()

    def on_rollout_start(
        self, trainer: TrainerProperties, pl_module: Any, tasks: Any, iteration: int
    ) -> None:
        """Show that tasks are played."""
        if self._progress is not None:
            self._rollout_began = time.perf_counter()
            self._progress.begin_iteration(self._rollout_began)
        self._enter("play")

    def on_rollout_end(
        self, trainer: TrainerProperties, pl_module: Any, rollout: RolloutBatch, iteration: int
    ) -> None:
        """Show how fast was sampled, and that rewards and advantages are computed."""
        if self._progress is not None:
            now = time.perf_counter()
            # what is sampled ahead has been so since the rollout before
            ahead = trainer.rollout.max_staleness and self._rollout_ended is not None
            began = self._rollout_ended if ahead else self._rollout_began
            seconds = now - (began or self._rollout_began)
            self._progress.tokens_per_second = sampled_tokens(rollout.trajectories) / max(seconds, 1e-9)
            self._rollout_ended = now
            for trajectory in rollout.trajectories[:1]:
                self._progress.conversation = partial(conversation_text, trajectory, self._progress.agents)
        self._enter("grade")

    def on_update_start(self, trainer: TrainerProperties, pl_module: Any, batch: Any, iteration: int) -> None:
        """Show that workers learn."""
        self._enter("update")

    def on_worker_update_start(
        self, trainer: TrainerProperties, pl_module: Any, worker: str, place: int, count: int
    ) -> None:
        """Show which worker group learns."""
        self._enter(f"update {worker}, {place} of {count}" if count > 1 else f"update {worker}")

    def on_train_batch_end(  # type: ignore[override]
        self,
        trainer: TrainerProperties,
        pl_module: Any,
        outputs: Mapping[str, float],
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Show an iteration's metrics, and what keeps it from learning."""
        if self._progress is None or self._display is None:
            return
        self._progress.causes = [finding.cause for finding in trainer.state.diagnoses]
        self._progress.end_iteration(trainer.iteration, outputs, time.perf_counter())
        self._display.show_iteration()

    def on_validation_start(self, trainer: TrainerProperties, pl_module: Any) -> None:  # type: ignore[override]
        """Show that validation tasks are played."""
        self._enter("validation")

    def on_validation_end(self, trainer: TrainerProperties, pl_module: Any) -> None:  # type: ignore[override]
        """Show a validation's scores."""
        if self._progress is None or self._display is None:
            return
        evaluations = list(trainer.state.evaluations)
        self._progress.end_validation(evaluations, trainer.state.best_at, time.perf_counter())
        self._display.show_validation()

    def on_save_checkpoint(  # type: ignore[override]
        self, trainer: TrainerProperties, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        """Show that a checkpoint is written."""
        self._enter("save")

    def on_fit_end(self, trainer: TrainerProperties, pl_module: Any) -> None:  # type: ignore[override]
        """Leave the last state."""
        self._enter("stopped" if trainer.iteration < trainer.max_iterations else "done")
        self._close()

    def on_exception(self, trainer: TrainerProperties, pl_module: Any, exception: BaseException) -> None:  # type: ignore[override]
        """Leave the last state, so that the message stands below it."""
        self._close()

    def _enter(self, phase: str) -> None:
        if self._progress is not None and self._display is not None:
            self._progress.enter(phase, time.perf_counter())
            self._display.refresh()

    def _close(self) -> None:
        display = self._display
        self._display = None
        if display is not None:
            display.close()


def title_of(trainer: TrainerProperties) -> str:
    """Say in a few words what a run trains."""
    hparams = trainer.hparams or {}
    parts = [hparams.get(key) for key in ("env", "agents")]
    names = [
        part["name"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("name"), str)
    ]
    what = "-".join(names) if len(names) == len(parts) else type(trainer.team).__name__
    return f"{what}  seed {trainer.seed}  {trainer.fabric.device}"


def sampled_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Count the tokens that engines have sampled."""
    return sum(len(turn.response_ids) for trajectory in trajectories for turn in trajectory.sampled)
