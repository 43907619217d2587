"""The loop that trains a team: rollout → score → learn, iteration by iteration, on Lightning Fabric.

The constructor keeps the words of Lightning's Trainer. One iteration is readable in :meth:`MultiAgentTrainer.fit`; nothing else
drives the run. What its stages do is in :mod:`drmas_pl.trainer.rollouts` and :mod:`drmas_pl.trainer.iteration`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.callbacks import ProgressBar as LightningBar
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus
from torch import Tensor

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import CreditRule
from drmas_pl.algorithms.estimators import AdvantageEstimator, as_estimator
from drmas_pl.algorithms.turn_batch import TurnBatch
from drmas_pl.data.module import TaskDataModule
from drmas_pl.data.recorded import write_trajectories
from drmas_pl.errors import CheckpointError, ConfigError, NonFiniteWeights, StorageError, TrainingStopped
from drmas_pl.rollout.dynamic_sampling import RolloutBatch
from drmas_pl.rollout.played_ahead import load_played_ahead
from drmas_pl.seeding import derive_seed
from drmas_pl.team import Team
from drmas_pl.trainer.callbacks import (
    callback_states,
    check_callbacks,
    check_monitors,
    restore_callbacks,
)
from drmas_pl.trainer.checkpoint import (
    PLAYED_AHEAD,
    find_checkpoint,
    load_callbacks,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from drmas_pl.trainer.checks import (
    TrainedAgent,
    check_contracts,
    check_copies,
    check_critics,
    check_groups,
    check_method,
    check_names,
    check_unused,
    refuse,
)
from drmas_pl.trainer.conversation_log import log_conversations
from drmas_pl.trainer.diagnosis import Finding, diagnose
from drmas_pl.trainer.evaluation import Evaluation, evaluate
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.iteration import ScoredBatch, UpdateReports, learn, score_rollout
from drmas_pl.trainer.lightning_api import TeamModule, TrainerProperties, as_tensors
from drmas_pl.trainer.logging import as_loggers, begin_logging, finalize
from drmas_pl.trainer.metrics import (
    collection_metrics,
    critic_metrics,
    health_metrics,
    signal_metrics,
    update_metrics,
)
from drmas_pl.trainer.progress_bar import ProgressBar
from drmas_pl.trainer.rollouts import AsyncRollouts, SyncRollouts, make_collector
from drmas_pl.trainer.run_directory import RunDirectory, with_advantages, with_prompts
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.state import FitContext, RunState, agents_of, limit_batches, run_marks
from drmas_pl.trainer.stopping import StopSignals
from drmas_pl.trainer.waterfall import plot_waterfall
from drmas_pl.types import Task, Trajectory
from drmas_pl.utils.memory import ROLLOUT_REMEDY, UPDATE_REMEDY, named_out_of_memory
from drmas_pl.utils.validation import check_arguments, shown
from drmas_pl.workers.engine_phases import awake_engines
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.protocols import PolicyWorkers, ValueWorkers
from drmas_pl.workers.schedule import GroupSchedule, Schedule
from drmas_pl.workers.strategies import check_precision

log = logging.getLogger(__name__)
PHASES = ("train", "validation", "test")
# longer than any run, and short enough for every clock
MAX_SECONDS = 1e8
STAGES = {
    TrainerFn.FITTING: RunningStage.TRAINING,
    TrainerFn.VALIDATING: RunningStage.VALIDATING,
    TrainerFn.TESTING: RunningStage.TESTING,
}


class MultiAgentTrainer(TrainerProperties):
    """Trains the agents of one team.

    Args:
        max_iterations: Iterations of the whole run, resumed parts included.
        output_dir: Run folder.
        estimator: Turns the scores of a rollout into advantages.
        credit: What each turn is credited with; by default the team's reward and its own local one.
        schedule: Which worker groups learn in which iteration; all by default.
        rollout: How training trajectories are played.
        evaluation: How validation is played.
        seed: Every random number of the run derives from it.
        accelerator: As in Lightning.
        devices: As in Lightning; one device per process.
        strategy: As in Lightning.
        precision: As in Lightning.
        callbacks: Lightning callbacks, or a single one; a run is one epoch whose batches are iterations, and ``on_train_batch_end`` gets
            their metrics.
        logger: Lightning loggers, or a single one; True for TensorBoard and CSV files in the run folder, False for none.
        hparams: Settings of the run as nested plain values, which every logger is given.
        limit_val_batches: Number (int) or share (float) of validation batches, as in Lightning.
        fast_dev_run: One iteration and one validation batch, no loggers, no checkpoint.
        checkpoint_every: Iterations between checkpoints; 0 leaves it to ``checkpoint_minutes``. The end of a run, Ctrl-C, SIGTERM and
            guard rails save in any case.
        checkpoint_minutes: Minutes after which the next iteration is saved as well; 0 leaves it to ``checkpoint_every``.
        grace_seconds: How long a rollout or a validation goes on after SIGTERM or SIGHUP; then the run is saved as it was before it.
        keep_best: Besides the last checkpoint keep the one with the best sampled validation.
        record: Phases whose trajectories are written as JSONL: ``train``, ``validation``, ``test``.
        record_prompts: Write the text of every prompt beside its ids.
        allow_changed_data: Resume although the data changed.
        env_check: Play a few turns on copies of team and environment before training, and refuse what breaks its contract.
        enable_progress_bar: Show the run, in a panel in a terminal and in a notebook, by lines elsewhere; a progress bar among the
            callbacks takes its place.

    Raises:
        ConfigError: A callback cannot work here, a phase is unknown, or the setting asks for several devices in one process.
        TypeError: An argument is of another type.
    """

    def __init__(  # noqa: PLR0915 - takes its settings one by one
        self,
        *,
        max_iterations: int,
        output_dir: str | Path,
        estimator: AdvantageEstimator | Callable[[TurnBatch], Tensor] | None = None,
        credit: CreditRule | None = None,
        schedule: Schedule | None = None,
        rollout: RolloutSettings | None = None,
        evaluation: EvaluationSettings | None = None,
        seed: int = 0,
        accelerator: str = "auto",
        devices: int = 1,
        strategy: str = "auto",
        precision: Any = "32-true",
        callbacks: Sequence[Callback] | Callback | None = (),
        logger: Sequence[Any] | Any = (),
        hparams: Mapping[str, Any] | None = None,
        limit_val_batches: int | float = 1.0,
        fast_dev_run: bool = False,
        checkpoint_every: int = 0,
        checkpoint_minutes: float = 30.0,
        grace_seconds: float = 20.0,
        keep_best: bool = True,
        record: Sequence[str] = ("validation",),
        record_prompts: bool = False,
        allow_changed_data: bool = False,
        env_check: bool = True,
        enable_progress_bar: bool = True,
    ) -> None:
        callbacks = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
        check_arguments(MultiAgentTrainer.__init__, {**locals(), "callbacks": ()})
        if credit is not None and (not callable(credit) or isinstance(credit, type)):
            raise TypeError(f"credit must be a credit rule such as TeamReward(), got {shown(credit)}")
        loggers = as_loggers(logger, Path(output_dir) / "logs")
        if max_iterations < 1:
            raise ConfigError(f"max_iterations must be at least 1, got {max_iterations}")
        if devices != 1:
            raise ConfigError(
                f"devices={devices}: one process trains on one device; for several use cluster=ray cluster.ranks={devices}"
            )
        unknown = [phase for phase in record if phase not in PHASES]
        if unknown:
            raise ConfigError(f"record must name phases out of {list(PHASES)}, got {unknown}")
        for name, value in (("checkpoint_minutes", checkpoint_minutes), ("grace_seconds", grace_seconds)):
            if not 0 <= value <= MAX_SECONDS:
                raise ConfigError(f"{name} must be at least 0 and finite, got {value}")
        evaluation = evaluation or EvaluationSettings()
        check_callbacks(callbacks, loggers=loggers, validates=evaluation.every > 0 or fast_dev_run)
        if enable_progress_bar and not any(
            isinstance(item, (ProgressBar, LightningBar)) for item in callbacks
        ):
            callbacks.insert(0, ProgressBar())
        limit_batches((), limit_val_batches)
        self.precision = precision
        self.max_iterations = 1 if fast_dev_run else max_iterations
        self.folder = RunDirectory(output_dir)
        self.estimator = as_estimator(estimator)
        self.credit = credit
        self.schedule = schedule or GroupSchedule()
        self.rollout = rollout or RolloutSettings()
        self.evaluation = evaluation
        self.seed = seed
        self.callbacks = callbacks
        self.loggers = [DummyLogger()] if fast_dev_run and loggers else loggers
        self.hparams = hparams
        self.callback_metrics: dict[str, Tensor] = {}
        self.limit_val_batches = 1 if fast_dev_run else limit_val_batches
        self.fast_dev_run = fast_dev_run
        self.checkpoint_every = checkpoint_every
        self.checkpoint_minutes = checkpoint_minutes
        self.grace_seconds = grace_seconds
        self.keep_best = keep_best
        self.record = frozenset(record)
        self.record_prompts = record_prompts
        self.allow_changed_data = allow_changed_data
        self.env_check = env_check
        self.should_stop = False
        self.signals = StopSignals(self._request_stop, grace_seconds=grace_seconds)
        self.state = RunState()
        self.module = TeamModule({})
        self.context: FitContext | None = None
        self._checked: Team | None = None
        self._reported: set[Finding] = set()
        self.fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            strategy=strategy,
            precision=precision,
            callbacks=self.callbacks,
            loggers=list(self.loggers),
        )
        self.fabric.launch()

    def fit(
        self,
        team: Team,
        groups: PolicyWorkers,
        data: TaskDataModule,
        *,
        critics: ValueWorkers | None = None,
        ckpt_path: str | Path | None = None,
    ) -> RunState:
        """Train until ``max_iterations``, a signal or ``should_stop``, then validate, save and sum up.

        A run whose iterations are all there is given what it lacks: the last validation, the summary, the plot and the page.

        Args:
            team: Prototype of the team.
            groups: Worker groups by name, built on this trainer's ``fabric``.
            data: Tasks.
            critics: Critics by name, for estimators that need values.
            ckpt_path: Checkpoint, or run folder, to go on from.

        Raises:
            CheckpointError: The checkpoint is damaged or does not fit.
            ConfigError: The estimator needs critics that are not there, or the other way round.
            FolderInUse: Another process writes into the run folder.
            StorageError: Something cannot be written.
            TrainingStopped: A guard rail ended the run.
            TypeError: An argument is of another type.
        """
        check_arguments(MultiAgentTrainer.fit, locals())
        with self.folder.lock:
            self._start(team, groups, data, ckpt_path, critics or {})
            with self._guarded():
                self._begin_training()
                while self.iteration < self.max_iterations and not self.should_stop:
                    rollout = self.next_rollout()
                    batch = self.score(rollout)
                    reports = self.learn(batch)
                    self.end_iteration(rollout, batch, reports)
                self._end_training()
        return self.state

    def next_rollout(self) -> RolloutBatch:
        """Begin an iteration and return its rollout."""
        index = self.iteration
        self.state.begin_iteration()
        torch.manual_seed(derive_seed(self.seed, "iteration", index))
        tasks = self.data.tasks_for(index)
        self._call("on_train_batch_start", tasks, index)
        self._call("on_rollout_start", tasks, index)
        with self.signals.may_be_given_up(), named_out_of_memory("the rollout", ROLLOUT_REMEDY):
            rollout = self.running.rollouts.next(index)
        self.state.end_rollout()
        self._call("on_rollout_end", rollout, index)
        return rollout

    def score(self, rollout: RolloutBatch) -> ScoredBatch:
        """Compute rewards, credit, KL penalties, values and advantages of a rollout's turns."""
        return score_rollout(
            rollout,
            self.running,
            credit=self.credit,
            estimator=self.estimator,
            settings=self.rollout,
            seed=derive_seed(self.seed, "align", self.iteration),
        )

    def learn(self, batch: ScoredBatch) -> UpdateReports:
        """Update every scheduled worker, and bring new weights to idle engines."""
        index = self.iteration
        self._call("on_update_start", batch, index)
        with named_out_of_memory("the update", UPDATE_REMEDY):
            reports = learn(
                batch,
                self.running,
                schedule=self.schedule,
                iteration=index,
                seed=self.seed,
                begun=partial(self._call, "on_worker_update_start"),
            )
        self._call("on_update_end", reports, index)
        return reports

    def end_iteration(self, rollout: RolloutBatch, batch: ScoredBatch, reports: UpdateReports) -> None:
        """Count the iteration, log it, and validate and save where it is time to.

        Raises:
            TrainingStopped: Nothing has been learnt for too many iterations.
        """
        index = self.iteration
        self.state.complete_iteration()
        metrics = self._metrics(rollout, batch, reports)
        trajectories = with_advantages(
            rollout.trajectories, batch.turns, batch.advantage, iteration=self.iteration
        )
        self._record("train", trajectories)
        self._draw(rollout)
        self._log(metrics)
        self._diagnose(batch)
        self._call("on_train_batch_end", metrics, rollout.tasks, index)
        self._check_signal(reports.policies)
        if self._due(self.evaluation.every) and not self.signals.is_terminating:
            self._validate()
        minutes = self.state.minutes_since_save
        if self._due(self.checkpoint_every) or 0 < self.checkpoint_minutes <= minutes:
            self._save()

    def check_method(self, trained: Sequence[TrainedAgent]) -> None:
        """Refuse settings that cannot learn and warn, once, of those that compute something else than they say.

        :meth:`fit` does it as well; before that it needs no weights.

        Args:
            trained: Agents that are going to be trained.

        Raises:
            ConfigError: The run would be of no use.
        """
        if trained:
            check_precision(self.precision)
        findings = check_method(self.estimator, credit=self.credit, rollout=self.rollout, trained=trained)
        refuse(findings)
        for finding in findings:
            if finding not in self._reported:
                log.warning(finding.message)
        self._reported.update(findings)

    def check_team(self, team: Team, data: TaskDataModule, agents: Iterable[Agent]) -> None:
        """Look for agents that no setting can mean, and for broken promises of environment, team and roles, the latter once.

        :meth:`fit` does it as well; before that it needs no weights.

        Args:
            team: The team around its environment.
            data: Tasks; the first and the last one for training are played for a few turns.
            agents: The team's agents, bound to a policy or not.

        Raises:
            ConfigError: A setting names somebody else, or a method returns or raises what it must not.
        """
        check_names(team, estimator=self.estimator, credit=self.credit, rollout=self.rollout)
        if self.rollout.branches:
            check_copies(team, data.tasks("train"), seed=self.seed)
        if not self.env_check or self._checked is team:
            return
        check_contracts(team, data.tasks("train"), agents, seed=self.seed)
        self._checked = team

    def validate(
        self, team: Team, groups: PolicyWorkers, data: TaskDataModule, *, ckpt_path: str | Path | None = None
    ) -> Evaluation:
        """Play the validation split with the given or the checkpoint's weights."""
        return self._evaluate_only("validation", team, groups, data, ckpt_path)

    def test(
        self, team: Team, groups: PolicyWorkers, data: TaskDataModule, *, ckpt_path: str | Path | None = None
    ) -> Evaluation:
        """Play the test split with the given or the checkpoint's weights."""
        return self._evaluate_only("test", team, groups, data, ckpt_path)

    def _start(
        self,
        team: Team,
        groups: PolicyWorkers,
        data: TaskDataModule,
        ckpt_path: str | Path | None,
        critics: ValueWorkers,
    ) -> None:
        """Check what a run consists of, bind it to the trainer, and restore a checkpoint."""
        if ckpt_path is None:
            check_unused(self.folder)
        check_groups(team, groups, self.fabric)
        check_critics(self.estimator, critics, groups, credit=self.credit)
        self.check_method(
            [
                TrainedAgent(agent, group.settings.update)
                for group in groups.values()
                if group.settings.trainable
                for agent in group.agents.values()
            ]
        )
        path = None if ckpt_path is None else find_checkpoint(ckpt_path)
        fit = self._bind(
            team, groups, data, critics, checkpoint=path, max_staleness=self.rollout.max_staleness
        )
        data.setup("fit")
        self.check_team(team, data, self.agents.values())
        self.state = RunState()
        self.folder.drop_leftovers()
        if path is not None:
            self._restore(path, fit)
        else:
            self.folder.set_metrics_aside()
        fit.retry.run(fit.retry.snapshot)
        self.state.begin()

    def _bind(
        self,
        team: Team,
        groups: PolicyWorkers,
        data: TaskDataModule,
        critics: ValueWorkers,
        *,
        checkpoint: Path | None = None,
        max_staleness: int = 0,
    ) -> FitContext:
        """Make what is given the trainer's own, and build what plays it."""
        agents = agents_of(team, groups)
        collector = make_collector(team, agents, self.rollout, failure_log=self.folder.failures)
        retry = StageRetry([*groups.values(), *critics.values()], self.folder.path / "cluster")
        options: dict[str, Any] = {
            "settings": self.rollout,
            "credit": self.credit,
            "seed": self.seed,
            "retry": retry,
        }
        rollouts = (
            AsyncRollouts(collector, data, groups, max_iterations=self.max_iterations, **options)
            if max_staleness
            else SyncRollouts(collector, data, groups, **options)
        )
        self.context = FitContext(
            team, dict(groups), dict(critics), data, collector, rollouts, retry, checkpoint
        )
        self.module = TeamModule(agents)
        self.should_stop = False
        self.signals = StopSignals(self._request_stop, grace_seconds=self.grace_seconds)
        return self.context

    def _restore(self, path: Path, fit: FitContext) -> None:
        """Go back to a checkpoint: workers, state of the run, and what was played ahead."""
        manifest = fit.retry.run(
            load_checkpoint,
            path,
            fit.groups,
            data=run_marks(fit.data, fit.agents),
            critics=fit.critics,
            allow_changed_data=self.allow_changed_data,
        )
        if manifest.seed != self.seed:
            raise CheckpointError(
                f"checkpoint {path} has seed {manifest.seed}, this run has seed {self.seed}; use the same seed"
            )
        self.state = RunState.restore(manifest)
        self.estimator.load_state_dict(self.state.estimator)
        if path.parent.resolve() == self.folder.checkpoints.resolve():
            self.state.saved()
        self.folder.rewind_metrics(self.iteration, validated=self.state.evaluated_at == self.iteration)
        if self.rollout.max_staleness and (path / PLAYED_AHEAD).is_dir():
            fit.rollouts.restore(load_played_ahead(path / PLAYED_AHEAD, fit.data.tasks("train")))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let signals end the run in good order, say how it goes on where it cannot, and tell callbacks and loggers how it ended."""
        fit = self.running
        try:
            with (
                self.signals,
                self._calls(TrainerFn.FITTING),
                self._told_how_to_go_on(),
                self._saved_if_stopped(),
            ):
                yield
            finalize(self.loggers, "success")
        except BaseException:
            finalize(self.loggers, "failed")
            raise
        finally:
            fit.rollouts.close()
            fit.retry.clear()

    @contextmanager
    def _calls(self, fn: TrainerFn) -> Iterator[None]:
        """Tell callbacks that one of the trainer's methods begins, and how it ends."""
        self.state.enter(fn, STAGES[fn])
        try:
            self._call("setup", fn.value)
            yield
            self._call("teardown", fn.value)
            self.state.leave(TrainerStatus.FINISHED)
        except BaseException as error:
            self.state.leave(TrainerStatus.INTERRUPTED)
            self._call("on_exception", error)
            raise

    def _begin_training(self) -> None:
        """Restore callbacks, open loggers and validate, before the first iteration."""
        checkpoint = self.running.checkpoint
        self._restore_callbacks(checkpoint)
        past = self.folder.read_metrics() if checkpoint or self.folder.has_begun_before else None
        begin_logging(self.loggers, self.hparams, past=past)
        self._call("on_fit_start")
        # that of the checkpoint's iteration is missing where the run was told to stop before it
        is_due = self._due(self.evaluation.every) and self.state.evaluated_at != self.iteration
        if not self.state.evaluations or is_due:
            self._validate()
        self._call("on_train_start")
        self._call("on_train_epoch_start")

    def _end_training(self) -> None:
        """Validate, save and sum up, after the last iteration."""
        self._call("on_train_epoch_end")
        self._call("on_train_end")
        # a run that was stopped is saved before it is validated, so that it can go on as if it never had been stopped
        if self.iteration < self.max_iterations or self.signals.is_terminating:
            self._save_once()
        if self.state.evaluated_at != self.iteration and not self.signals.is_terminating:
            self._validate()
        if self.iteration >= self.max_iterations:
            self._save_once()
        self._sum_up()
        self._call("on_fit_end")

    def _sum_up(self) -> None:
        """Write summary, plot and page where they are missing or older than the run."""
        summary = self.state.summary(self.team)
        if self.folder.summarizes(summary):
            return
        self.folder.write_summary(summary)
        self.folder.write_report(list(self.agents), f"{type(self.team).__name__}, seed {self.seed}")

    def _restore_callbacks(self, checkpoint: Path | None) -> None:
        """Give callbacks their states back, and find out before anything is played whether all states can be saved."""
        callback_states(self.callbacks)
        states = load_callbacks(checkpoint) if checkpoint is not None else {}
        if states:
            self._call("on_load_checkpoint", states)
            restore_callbacks(self.callbacks, states["callbacks"])

    def _callback_states(self) -> dict[str, Any]:
        """Return the part of a checkpoint that callbacks write, empty if none has anything to save."""
        plain = {"epoch": self.current_epoch, "global_step": self.global_step}
        states: dict[str, Any] = {**plain, "callbacks": callback_states(self.callbacks)}
        self._call("on_save_checkpoint", states)
        return states if states["callbacks"] or len(states) > len(plain) + 1 else {}

    def _validate(self) -> None:
        """Play the validation tasks, if there are any."""
        tasks = self._tasks("validation")
        if not tasks:
            return
        with self.signals.may_be_given_up():
            self.running.rollouts.drain()
            started = time.perf_counter()
            self.state.enter(TrainerFn.FITTING, RunningStage.VALIDATING)
            self._begin_evaluation("validation", tasks)
            result = self.running.retry.run(self._evaluate, "validation", tasks)
        self.state.evaluated(result, highlights=self.team.highlights)
        self._log({**result.metrics, "time/validation": time.perf_counter() - started})
        log_conversations(self.loggers, result.trajectories, step=self.iteration)
        check_monitors(self.callbacks, self.callback_metrics)
        self._end_evaluation("validation", tasks, result)
        self.state.enter(TrainerFn.FITTING, RunningStage.TRAINING)

    def _begin_evaluation(self, phase: str, tasks: Sequence[Task]) -> None:
        self._call(f"on_{phase}_start")
        self._call(f"on_{phase}_epoch_start")
        self._call(f"on_{phase}_batch_start", tasks, 0)

    def _end_evaluation(self, phase: str, tasks: Sequence[Task], result: Evaluation) -> None:
        self._call(f"on_{phase}_batch_end", dict(result.metrics), tasks, 0)
        self._call(f"on_{phase}_epoch_end")
        self._call(f"on_{phase}_end")

    def _tasks(self, phase: str) -> list[Task]:
        loader = self.data.val_dataloader() if phase == "validation" else self.data.test_dataloader()
        limit = self.limit_val_batches if phase == "validation" else 1.0
        return [task for batch in limit_batches(list(loader), limit) for task in batch]

    def _evaluate(self, phase: str, tasks: Sequence[Task]) -> Evaluation:
        """Play tasks with awake engines, and record the trajectories."""
        memory = named_out_of_memory(f"the {phase}", ROLLOUT_REMEDY)
        with memory, awake_engines(self.groups, self.rollout.residency) as engines:
            result = evaluate(
                self.collector,
                tasks,
                engines,
                self.evaluation,
                phase=phase,
                seed=self.seed,
                iteration=self.iteration,
            )
        self._record(phase, result.trajectories)
        return result

    def _evaluate_only(
        self,
        phase: str,
        team: Team,
        groups: PolicyWorkers,
        data: TaskDataModule,
        ckpt_path: str | Path | None,
    ) -> Evaluation:
        """Play a split outside of a run, with a checkpoint's weights if there is one."""
        check_arguments(MultiAgentTrainer.validate, locals())
        check_groups(team, groups, self.fabric)
        retry = self._bind(team, groups, data, {}).retry
        fn = TrainerFn.VALIDATING if phase == "validation" else TrainerFn.TESTING
        data.setup(fn.value)

        def load_and_play() -> Evaluation:
            if ckpt_path is not None:
                manifest = load_checkpoint(find_checkpoint(ckpt_path), groups, data={})
                self.state = RunState.restore(manifest)
                self.state.enter(fn, STAGES[fn])
            return self._evaluate(phase, tasks)

        with self._calls(fn):
            tasks = self._tasks(phase)
            self._begin_evaluation(phase, tasks)
            result = retry.run(load_and_play)
            self.callback_metrics |= as_tensors(result.metrics)
            self._end_evaluation(phase, tasks, result)
        return result

    def _save_once(self) -> None:
        """Save unless nothing has changed since the newest checkpoint; what crashes have left goes in any case."""
        if self.state.is_saved:
            self._prune()
        else:
            self._save()

    def _save(self, *, drain: bool = True) -> None:
        """Write a checkpoint and drop those that are neither last nor best.

        Args:
            drain: Whether the checkpoint holds what is played ahead.
        """
        if self.fast_dev_run:
            return
        fit = self.running
        self.folder.lock.check()
        self.state.estimator = self.estimator.state_dict()
        manifest = self.state.manifest(self.seed, fit.groups, run_marks(fit.data, fit.agents))
        fit.retry.run(
            save_checkpoint,
            self.folder.checkpoints,
            fit.groups,
            manifest,
            critics=fit.critics,
            played=fit.rollouts.drain() if drain else None,
            callbacks=self._callback_states(),
        )
        self.state.saved()
        self._prune()

    def _prune(self) -> None:
        """Drop checkpoints of this run that are neither last nor best."""
        names = {f"iteration-{self.state.saved_at or 0:06d}"}
        if self.keep_best and self.state.best_at is not None:
            names.add(f"iteration-{self.state.best_at:06d}")
        prune_checkpoints(self.folder.checkpoints, names, run_id=self.state.run_id)

    def _metrics(self, rollout: RolloutBatch, batch: ScoredBatch, reports: UpdateReports) -> dict[str, float]:
        """Name everything that an iteration is logged with."""
        declared = self.team.declared_metrics()
        return {
            **collection_metrics("train", rollout.trajectories, list(self.agents), declared=declared),
            **health_metrics(batch.all_turns),
            **signal_metrics(batch.turns, batch.advantage, self.estimator.scopes),
            **update_metrics(reports.policies),
            **critic_metrics(reports.critics),
            "train/dropped_tasks": rollout.dropped,
            **self.running.rollouts.metrics(rollout),
            **self.state.iteration_times(),
        }

    def _log(self, metrics: Mapping[str, float]) -> None:
        self.folder.append_metrics({"iteration": self.iteration, **metrics})
        self.callback_metrics |= as_tensors(metrics)
        with self.folder.optional("what loggers keep", self.folder.path / "logs"):
            self.fabric.log_dict(dict(metrics), step=self.iteration)

    def _record(self, phase: str, trajectories: Iterable[Trajectory]) -> None:
        if phase not in self.record:
            return
        self.folder.lock.check()
        if self.record_prompts:
            trajectories = with_prompts(trajectories, self.agents)
        path = self.folder.trajectories(phase, self.iteration)
        with self.folder.optional("the trajectories", path):
            write_trajectories(path, trajectories)

    def _draw(self, rollout: RolloutBatch) -> None:
        """Draw what the trajectories of a rollout waited for, on request."""
        if not self.rollout.waterfall or rollout.timeline is None:
            return
        path = self.folder.waterfall(self.iteration)
        title = f"rollout of iteration {self.iteration}"
        with self.folder.optional("the picture of the rollout", path):
            plot_waterfall(rollout.timeline, path, agents=list(self.agents), title=title)

    def _diagnose(self, batch: ScoredBatch) -> None:
        """Find what keeps the iteration from learning."""
        trainable = [
            agent for group in self.groups.values() if group.settings.trainable for agent in group.agents
        ]
        findings = diagnose(
            batch.all_turns,
            batch.turns,
            batch.advantage,
            trainable=trainable,
            scopes=self.estimator.scopes,
            samples=self.rollout.compared,
        )
        self.state.diagnosed(findings)

    def _check_signal(self, reports: Mapping[str, UpdateReport]) -> None:
        """Stop a run that has learnt nothing for too long; one that goes on from there is given as long again."""
        learnt = any(report.steps for report in reports.values()) or not reports
        self.state.idle = 0 if learnt else self.state.idle + 1
        if self.state.idle >= self.rollout.max_idle_iterations:
            idle = self.state.idle
            self.state.idle = 0
            causes = "; ".join(finding.message for finding in self.state.diagnoses)
            raise TrainingStopped(
                f"no learning signal for {idle} iterations: {causes or 'no advantage in any row'}"
            )

    @contextmanager
    def _saved_if_stopped(self) -> Iterator[None]:
        """Save before a guard rail, or the end of the grace after SIGTERM, ends the run; the latter is no error."""
        try:
            yield
        except NonFiniteWeights:
            raise
        except TrainingStopped:
            self._save_where_it_was()
            raise
        except KeyboardInterrupt:
            if not self.signals.is_over:
                raise
            self._save_where_it_was()
            self._sum_up()

    def _save_where_it_was(self) -> None:
        """Save the state before the iteration that was given up."""
        try:
            if self.state.saved_at != self.iteration:
                self._save(drain=False)
        except Exception as failure:
            log.warning("the run could not be saved where it stopped: %s", failure)

    @contextmanager
    def _told_how_to_go_on(self) -> Iterator[None]:
        """Add to what ends a run which checkpoint is the last one, and the command that goes on from it."""
        try:
            yield
        except NonFiniteWeights as error:
            raise NonFiniteWeights(f"{error}; {self._how_to_go_on()}") from error
        except TrainingStopped as error:
            raise TrainingStopped(f"{error}; once the cause is removed, {self._how_to_go_on()}") from error
        except (StorageError, OSError) as error:
            if isinstance(error, OSError) and not self.folder.concerns(error):
                raise
            raise StorageError(f"{error}; {self._how_to_go_on()}") from error

    def _how_to_go_on(self) -> str:
        """Name the newest checkpoint and the command that goes on from it."""
        newest = self.folder.newest_checkpoint()
        if newest is None:
            return f"nothing was saved yet, so start again with the same command into {self.folder.path}"
        return f"go on from iteration {newest}: {self.folder.resume_command}"

    def _due(self, every: int) -> bool:
        return every > 0 and self.iteration % every == 0

    def _request_stop(self) -> None:
        self.should_stop = True

    @property
    def stop_signal(self) -> Signals | None:
        """Signal that asked the run to end; None where none did."""
        return self.signals.received

    def _call(self, hook: str, *args: Any) -> None:
        self.fabric.call(hook, self, self.module, *args)
