"""The loop that trains a team: rollout → advantages → updates, group by group, on Lightning Fabric.

The constructor keeps the words of Lightning's Trainer. One iteration is readable in :meth:`MultiAgentTrainer.fit`; nothing else
drives the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerStatus
from torch import Tensor

from drmas_pl.agent import Agent
from drmas_pl.algorithms.credit_rules import CreditRule
from drmas_pl.algorithms.estimators import AdvantageEstimator, TokenAdvantages, as_estimator
from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.data.module import TaskDataModule
from drmas_pl.data.recorded import write_trajectories
from drmas_pl.errors import CheckpointError, ConfigError, TrainingStopped
from drmas_pl.rollout.batching import check_collection
from drmas_pl.rollout.dynamic_sampling import RolloutBatch, load_drawn
from drmas_pl.seeding import derive_seed
from drmas_pl.team import Team
from drmas_pl.trainer.async_rollouts import AsyncRollouts
from drmas_pl.trainer.callbacks import (
    TeamModule,
    callback_states,
    check_callbacks,
    check_monitors,
    on_interrupt,
    restore_callbacks,
)
from drmas_pl.trainer.checkpoint import (
    AHEAD,
    load_callbacks,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from drmas_pl.trainer.critics import Critics, check_critics, critic_metrics, judged, teach, warmup
from drmas_pl.trainer.diagnosis import diagnose
from drmas_pl.trainer.evaluate import Evaluation, evaluate
from drmas_pl.trainer.experience import kept_rows, penalised, training_rows
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.lightning_api import TrainerProperties, as_tensors
from drmas_pl.trainer.loggers import as_loggers, begin_logging, finalize
from drmas_pl.trainer.manifest import find_checkpoint
from drmas_pl.trainer.method import Finding, Learner, check_method, refuse
from drmas_pl.trainer.metrics import collection_metrics, health_metrics, signal_metrics, update_metrics
from drmas_pl.trainer.recording import with_advantages, with_prompts
from drmas_pl.trainer.run_directory import RunDirectory
from drmas_pl.trainer.settings import EvaluationSettings, RolloutSettings
from drmas_pl.trainer.start_checks import check_contracts, check_groups, check_names, check_unused
from drmas_pl.trainer.state import RunState, limit_batches, run_marks
from drmas_pl.trainer.sync_rollouts import SyncRollouts, make_collector
from drmas_pl.types import Task, Trajectory
from drmas_pl.utils.storage import writing
from drmas_pl.utils.validation import check_arguments, shown
from drmas_pl.workers.background_weight_sync import BackgroundWeightSync
from drmas_pl.workers.engine_phases import awake_engines
from drmas_pl.workers.learner import UpdateReport
from drmas_pl.workers.protocols import PolicyWorkerProtocol
from drmas_pl.workers.schedule import GroupSchedule, Schedule, learning_groups
from drmas_pl.workers.strategies import check_precision
from drmas_pl.workers.update_workers import update_workers
from drmas_pl.workers.value_worker import CriticReport

log = logging.getLogger(__name__)
PHASES = ("train", "validation", "test")
STAGES = {
    TrainerFn.FITTING: RunningStage.TRAINING,
    TrainerFn.VALIDATING: RunningStage.VALIDATING,
    TrainerFn.TESTING: RunningStage.TESTING,
}
Groups = Mapping[str, PolicyWorkerProtocol]


class MultiAgentTrainer(TrainerProperties):
    """Trains the agents of one team.

    Args:
        max_iterations: Iterations of the whole run, resumed parts included.
        output_dir: Run folder.
        estimator: Turns the scores of a collection into advantages.
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
        checkpoint_every: Iterations between checkpoints; 0 saves at the end and on Ctrl-C only.
        keep_best: Besides the last checkpoint keep the one with the best sampled validation.
        record: Phases whose trajectories are written as JSONL: ``train``, ``validation``, ``test``.
        record_prompts: Write the text of every prompt beside its ids.
        allow_changed_data: Resume although the data changed.
        env_check: Play a few turns on copies of team and environment before training, and refuse what breaks its contract.

    Raises:
        ConfigError: A callback cannot work here, a phase is unknown, or the setting asks for several devices in one process.
        TypeError: An argument is of another type.
    """

    def __init__(
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
        keep_best: bool = True,
        record: Sequence[str] = ("validation",),
        record_prompts: bool = False,
        allow_changed_data: bool = False,
        env_check: bool = True,
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
        evaluation = evaluation or EvaluationSettings()
        check_callbacks(callbacks, loggers=loggers, validates=evaluation.every > 0 or fast_dev_run)
        limit_batches((), limit_val_batches)
        self.precision = precision
        self.max_iterations = 1 if fast_dev_run else max_iterations
        self.folder = RunDirectory(output_dir)
        self.estimator = as_estimator(estimator)
        self.credit, self.schedule = credit, schedule or GroupSchedule()
        self.rollout, self.evaluation = rollout or RolloutSettings(), evaluation
        self.seed = seed
        self.callbacks = callbacks
        self.loggers = [DummyLogger()] if fast_dev_run and loggers else loggers
        self.hparams = hparams
        self.callback_metrics = {}
        self.limit_val_batches = 1 if fast_dev_run else limit_val_batches
        self.fast_dev_run = fast_dev_run
        self.checkpoint_every, self.keep_best = checkpoint_every, keep_best
        self.record, self.record_prompts = frozenset(record), record_prompts
        self.allow_changed_data, self.env_check = allow_changed_data, env_check
        self._checked: Team | None = None
        self.should_stop = self.interrupted = False
        self._told: set[Finding] = set()
        self.state = RunState()
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
        groups: Groups,
        data: TaskDataModule,
        *,
        critics: Critics | None = None,
        ckpt_path: str | Path | None = None,
    ) -> RunState:
        """Train until ``max_iterations``, Ctrl-C or ``should_stop``, then validate, save and sum up.

        Args:
            team: Prototype of the team.
            groups: Worker groups by name, built on this trainer's ``fabric``.
            data: Tasks.
            critics: Critics by name, for estimators that need values.
            ckpt_path: Checkpoint, or run folder, to go on from.

        Raises:
            CheckpointError: The checkpoint does not fit or has nothing left to do.
            ConfigError: The estimator needs critics that are not there, or the other way round.
            StorageError: Something cannot be written.
            TrainingStopped: A guard rail ended the run.
            TypeError: An argument is of another type.
        """
        check_arguments(MultiAgentTrainer.fit, locals())
        self._start(team, groups, data, ckpt_path, critics or {})
        with self._guarded():
            self._restore_callbacks()
            begin_logging(self.loggers, self.hparams, past=self.folder.read_metrics() if ckpt_path else None)
            self._call("on_fit_start")
            if not self.state.evaluations:
                self._validate()
            self._call("on_train_start")
            self._call("on_train_epoch_start")
            while self.iteration < self.max_iterations and not self.should_stop:
                started, index = time.perf_counter(), self.iteration
                torch.manual_seed(derive_seed(self.seed, "iteration", index))
                self._begin_iteration(index)
                drawn = self.player.take(index)
                played = time.perf_counter()
                check_collection(drawn.trajectories, samples=self.rollout.samples, versions=drawn.versions)
                table = build_turn_batch(drawn.trajectories, self.agents, credit=self.credit)
                trained = self.recovery.run(penalised, kept_rows(table, drawn), self.groups.values())
                trained = self.recovery.run(judged, trained, self.critics)
                advantage = self.estimator(trained)
                align_seed = derive_seed(self.seed, "align", index)
                rows = training_rows(
                    trained, advantage, align_turns=self.rollout.align_turns, seed=align_seed
                )
                taught = self.recovery.run(self._teach, trained, advantage, index)
                reports = self.recovery.run(self._update, rows, index)
                self.state.complete_iteration()
                metrics = {
                    **collection_metrics(
                        "train",
                        drawn.trajectories,
                        list(self.agents),
                        declared=self.team.declared_metrics(),
                    ),
                    **health_metrics(table),
                    **signal_metrics(trained, advantage, self.estimator.scopes),
                    **update_metrics(reports),
                    **critic_metrics(taught),
                    "train/dropped_tasks": drawn.dropped,
                    **self.player.metrics(drawn),
                    "time/rollout": played - started,
                    "time/update": time.perf_counter() - played,
                }
                said = with_advantages(drawn.trajectories, trained, advantage, iteration=self.iteration)
                self._record("train", said)
                self._log(metrics)
                self._diagnose(table, trained, advantage)
                self._call("on_train_batch_end", metrics, drawn.tasks, index)
                self._check_signal(reports)
                if self._due(self.evaluation.every):
                    self._validate()
                if self._due(self.checkpoint_every):
                    self._save()
            self._call("on_train_epoch_end")
            self._call("on_train_end")
            self._conclude()
            self._finish()
        return self.state

    def check_method(self, learners: Sequence[Learner]) -> None:
        """Refuse settings that cannot learn and warn, once, of those that compute something else than they say.

        :meth:`fit` does it as well; before that it needs no weights.

        Args:
            learners: Agents that are going to be trained.

        Raises:
            ConfigError: The run would be of no use.
        """
        if learners:
            check_precision(self.precision)
        findings = check_method(self.estimator, credit=self.credit, rollout=self.rollout, learners=learners)
        refuse(findings)
        for finding in findings:
            if finding not in self._told:
                log.warning(finding.message)
        self._told.update(findings)

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
        if not self.env_check or self._checked is team:
            return
        check_contracts(team, data.tasks("train"), agents, seed=self.seed)
        self._checked = team

    def validate(
        self, team: Team, groups: Groups, data: TaskDataModule, *, ckpt_path: str | Path | None = None
    ) -> Evaluation:
        """Play the validation split with the given or the checkpoint's weights."""
        return self._evaluate_only("validation", team, groups, data, ckpt_path)

    def test(
        self, team: Team, groups: Groups, data: TaskDataModule, *, ckpt_path: str | Path | None = None
    ) -> Evaluation:
        """Play the test split with the given or the checkpoint's weights."""
        return self._evaluate_only("test", team, groups, data, ckpt_path)

    @property
    def iteration(self) -> int:
        """Completed iterations."""
        return self.state.iteration

    @property
    def agents(self) -> dict[str, Agent]:
        """Agents by name, in the team's order."""
        found = {name: agent for group in self.groups.values() for name, agent in group.agents.items()}
        return {name: found[name] for name in self.team.possible_agents if name in found}

    def _start(
        self, team: Team, groups: Groups, data: TaskDataModule, ckpt_path: str | Path | None, critics: Critics
    ) -> None:
        """Bind team, groups, critics and data, and restore a checkpoint."""
        if ckpt_path is None:
            check_unused(self.folder)
        check_groups(team, groups, self.fabric)
        check_critics(self.estimator, critics, groups, credit=self.credit)
        self.check_method(
            [
                Learner(agent, group.settings.update)
                for group in groups.values()
                if group.settings.trainable
                for agent in group.agents.values()
            ]
        )
        self._bind(team, groups, data, critics)
        data.setup("fit")
        self.check_team(team, data, self.agents.values())
        self.state, kept, self.resumed_from = RunState(), None, None
        self._saved_at: int | None = None
        if ckpt_path is not None:
            path = find_checkpoint(ckpt_path)
            options: dict[str, Any] = {"critics": critics, "allow_changed_data": self.allow_changed_data}
            manifest = self.recovery.run(
                load_checkpoint, path, groups, data=run_marks(data, self.agents), **options
            )
            if manifest.seed != self.seed:
                raise CheckpointError(
                    f"checkpoint {path} has seed {manifest.seed}, this run has seed {self.seed}; use the same seed"
                )
            self.state, self.resumed_from = RunState.restore(manifest.state), path
            self.estimator.load_state_dict(self.state.estimator)
            if self.iteration >= self.max_iterations:
                done = f"{self.iteration} of {self.max_iterations} iterations"
                raise CheckpointError(f"nothing left to do: {path} has {done}; raise trainer.max_iterations")
            self.folder.rewind_metrics(self.iteration, validated=self.state.evaluated_at == self.iteration)
            kept = (
                load_drawn(path / AHEAD, data.tasks("train"))
                if self.rollout.staleness and (path / AHEAD).is_dir()
                else None
            )
        self.player = self._make_player(kept)
        self.recovery.run(self.recovery.snapshot)
        self.state.begin()

    def _bind(self, team: Team, groups: Groups, data: TaskDataModule, critics: Critics) -> None:
        self.team, self.groups, self.data, self.critics = team, dict(groups), data, dict(critics)
        self.recovery = StageRetry([*groups.values(), *critics.values()], self.folder.path / "cluster")
        self.should_stop = self.interrupted = False
        self.collector = make_collector(team, self.agents, self.rollout, failure_log=self.folder.failures)
        self.module = TeamModule(self.agents)

    def _make_player(self, kept: RolloutBatch | None) -> SyncRollouts:
        parts = (self.collector, self.data, self.groups)
        options: dict[str, Any] = {
            "settings": self.rollout,
            "credit": self.credit,
            "seed": self.seed,
            "recovery": self.recovery,
        }
        return (
            AsyncRollouts(*parts, last=self.max_iterations, kept=kept, **options)
            if self.rollout.staleness
            else SyncRollouts(*parts, **options)
        )

    def _teach(
        self, table: TurnBatch, advantage: Tensor | TokenAdvantages, index: int
    ) -> dict[str, CriticReport]:
        """Update the critics; what they have learnt is kept before the policies' update may be repeated."""
        reports = teach(table, advantage, self.critics, seed=derive_seed(self.seed, "update", index))
        self.recovery.snapshot()
        return reports

    def _update(self, rows: Mapping[str, list[TrainingRow]], index: int) -> dict[str, UpdateReport]:
        """Update the groups whose turn it is on their agents' rows; none while critics warm up."""
        if index < warmup(self.critics):
            return {}
        trainable = [name for name, group in self.groups.items() if group.settings.trainable]
        names = learning_groups(self.schedule, trainable, index)
        seeds = {name: derive_seed(self.seed, "update", index, name) for name in names}
        with BackgroundWeightSync(idle=self.player.leaves_engines_idle) as handover:
            reports = update_workers(
                [self.groups[name] for name in names], rows, seeds, learnt=handover.begin
            )
        self.recovery.snapshot()
        return reports

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let Ctrl-C end the run in good order, and callbacks and loggers know how it ended."""
        try:
            with on_interrupt(self._request_stop), self._running(TrainerFn.FITTING), self._saved_if_stopped():
                yield
            finalize(self.loggers, "success")
        except BaseException:
            finalize(self.loggers, "failed")
            raise
        finally:
            self.player.stop()
            self.recovery.clear()

    @contextmanager
    def _running(self, fn: TrainerFn) -> Iterator[None]:
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

    def _restore_callbacks(self) -> None:
        """Give callbacks what they kept, and find out before anything is played whether all can keep something."""
        callback_states(self.callbacks)
        kept = load_callbacks(self.resumed_from) if self.resumed_from is not None else {}
        if kept:
            self._call("on_load_checkpoint", kept)
            restore_callbacks(self.callbacks, kept["callbacks"])

    def _kept_by_callbacks(self) -> dict[str, Any]:
        """Return the part of a checkpoint that callbacks write, empty if none has anything to keep."""
        plain = {"epoch": self.current_epoch, "global_step": self.global_step}
        kept: dict[str, Any] = {**plain, "callbacks": callback_states(self.callbacks)}
        self._call("on_save_checkpoint", kept)
        return kept if kept["callbacks"] or len(kept) > len(plain) + 1 else {}

    def _begin_iteration(self, index: int) -> None:
        self.state.begin_iteration()
        self._call("on_train_batch_start", self.data.tasks_for(index), index)

    def _conclude(self) -> None:
        """Validate and save; a run that was stopped is saved first, so that it can go on as if it never had been."""
        complete = self.iteration >= self.max_iterations
        if not complete:
            self._save()
        if self.state.evaluated_at != self.iteration:
            self._validate()
        if complete:
            self._save()

    def _validate(self) -> None:
        """Play the validation tasks, if there are any."""
        tasks = self._tasks("validation")
        if not tasks:
            return
        self.player.finish()
        started = time.perf_counter()
        self.state.enter(TrainerFn.FITTING, RunningStage.VALIDATING)
        self._begin_evaluation("validation", tasks)
        result = self.recovery.run(self._play, "validation", tasks)
        self.state.evaluated(result, highlights=self.team.highlights)
        self._log({**result.metrics, "time/validation": time.perf_counter() - started})
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

    def _play(self, phase: str, tasks: Sequence[Task]) -> Evaluation:
        with awake_engines(self.groups, self.rollout.residency) as engines:
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
        self, phase: str, team: Team, groups: Groups, data: TaskDataModule, ckpt_path: str | Path | None
    ) -> Evaluation:
        check_arguments(MultiAgentTrainer.validate, locals())
        check_groups(team, groups, self.fabric)
        self._bind(team, groups, data, {})
        fn = TrainerFn.VALIDATING if phase == "validation" else TrainerFn.TESTING
        data.setup(fn.value)

        def load_and_play() -> Evaluation:
            if ckpt_path is not None:
                self.state = RunState.restore(
                    load_checkpoint(find_checkpoint(ckpt_path), groups, data={}).state
                )
                self.state.enter(fn, STAGES[fn])
            return self._play(phase, tasks)

        with self._running(fn):
            tasks = self._tasks(phase)
            self._begin_evaluation(phase, tasks)
            result = self.recovery.run(load_and_play)
            self.callback_metrics |= as_tensors(result.metrics)
            self._end_evaluation(phase, tasks, result)
        return result

    def _save(self) -> None:
        """Write a checkpoint and drop those that are neither last nor best."""
        if self.fast_dev_run:
            return
        self.state.estimator = self.estimator.state_dict()
        manifest = self.state.manifest(self.seed, self.groups, run_marks(self.data, self.agents))
        parts: dict[str, Any] = {
            "critics": self.critics,
            "drawn": self.player.finish(),
            "callbacks": self._kept_by_callbacks(),
        }
        path = self.recovery.run(save_checkpoint, self.folder.checkpoints, self.groups, manifest, **parts)
        keep = {path.name}
        if self.keep_best and self.state.best_at is not None:
            keep.add(f"iteration-{self.state.best_at:06d}")
        prune_checkpoints(self.folder.checkpoints, keep)
        self._saved_at = self.iteration

    def _finish(self) -> None:
        """Write summary and plot and let every callback know."""
        self.folder.write_summary(self.state.summary(self.team))
        self.folder.draw(list(self.agents), f"{type(self.team).__name__}, seed {self.seed}")
        self._call("on_fit_end")

    def _log(self, metrics: Mapping[str, float]) -> None:
        self.folder.append_metrics({"iteration": self.iteration, **metrics})
        self.callback_metrics |= as_tensors(metrics)
        with writing("what loggers keep", self.folder.path / "logs"):
            self.fabric.log_dict(dict(metrics), step=self.iteration)

    def _record(self, phase: str, trajectories: Iterable[Trajectory]) -> None:
        if phase not in self.record:
            return
        if self.record_prompts:
            trajectories = with_prompts(trajectories, self.agents)
        path = self.folder.trajectories(phase, self.iteration)
        with writing("the trajectories", path):
            write_trajectories(path, trajectories)

    def _diagnose(self, table: TurnBatch, trained: TurnBatch, advantage: Tensor | TokenAdvantages) -> None:
        """Find what keeps the iteration from learning."""
        learners = [
            agent for group in self.groups.values() if group.settings.trainable for agent in group.agents
        ]
        self.state.diagnosed(
            diagnose(
                table,
                trained,
                advantage,
                trainable=learners,
                scopes=self.estimator.scopes,
                samples=self.rollout.samples,
            )
        )

    def _check_signal(self, reports: Mapping[str, UpdateReport]) -> None:
        """Stop a run that has learnt nothing for too long; one that goes on from there is given as long again."""
        learnt = any(report.steps for report in reports.values()) or not reports
        self.state.idle = 0 if learnt else self.state.idle + 1
        if self.state.idle >= self.rollout.max_idle_iterations:
            idle, self.state.idle = self.state.idle, 0
            causes = "; ".join(diagnosis.message for diagnosis in self.state.diagnoses)
            raise TrainingStopped(
                f"no learning signal for {idle} iterations: {causes or 'no advantage in any row'}"
            )

    @contextmanager
    def _saved_if_stopped(self) -> Iterator[None]:
        """Save before a guard rail ends the run, and say how it goes on."""
        try:
            yield
        except TrainingStopped as error:
            try:
                if self._saved_at != self.iteration:
                    self._save()
            except Exception as failure:
                log.warning("the run could not be saved where it stopped: %s", failure)
            if self._saved_at is None:
                raise
            raise TrainingStopped(
                f"{error}; once the cause is removed, go on from iteration {self._saved_at}: "
                f"{self.folder.resume_command}"
            ) from error

    def _due(self, every: int) -> bool:
        return every > 0 and self.iteration % every == 0

    def _request_stop(self) -> None:
        log.warning("stopping after this iteration; press Ctrl-C again to stop at once without saving")
        self.should_stop = self.interrupted = True

    def _call(self, hook: str, *args: Any) -> None:
        self.fabric.call(hook, self, self.module, *args)
