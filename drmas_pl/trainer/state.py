"""What a call of the trainer works on, what a run remembers from iteration to iteration, and its summary."""

from __future__ import annotations

import hashlib
import logging
import resource
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus

from drmas_pl.agent import Agent
from drmas_pl.data.module import TaskDataModule
from drmas_pl.rollout.collector import Collector
from drmas_pl.team import Team
from drmas_pl.trainer.diagnosis import Finding
from drmas_pl.trainer.evaluation import Evaluation
from drmas_pl.trainer.fault_tolerance import StageRetry
from drmas_pl.trainer.rollouts import SyncRollouts
from drmas_pl.utils.manifest import Manifest
from drmas_pl.workers.protocols import PolicyWorkers, ValueWorkers

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FitContext:
    """What one call of ``fit``, ``validate`` or ``test`` works on.

    Attributes:
        team: Prototype of the team.
        groups: Worker groups by name.
        critics: Critics by name.
        data: Tasks.
        collector: Plays the team.
        rollouts: Gives the rollout of every iteration.
        retry: Repeats a stage that lost a worker.
        checkpoint: Checkpoint that the run goes on from; None for a new one.
    """

    team: Team
    groups: PolicyWorkers
    critics: ValueWorkers
    data: TaskDataModule
    collector: Collector
    rollouts: SyncRollouts
    retry: StageRetry
    checkpoint: Path | None = None

    @property
    def agents(self) -> dict[str, Agent]:
        """Agents by name, in the team's order."""
        return agents_of(self.team, self.groups)


def agents_of(team: Team, groups: PolicyWorkers) -> dict[str, Agent]:
    """Return the agents of worker groups by name, in the team's order."""
    found = {name: agent for group in groups.values() for name, agent in group.agents.items()}
    return {name: found[name] for name in team.possible_agents if name in found}


@dataclass(slots=True)
class RunState:
    """Counters and evaluations of a run, and what it is doing, in Lightning's words.

    Attributes:
        iteration: Completed iterations.
        evaluations: Scores of every validation with the ``iteration`` they were taken at, oldest first.
        best_at: Iteration of the best sampled validation after training began.
        best: Its score.
        idle: Iterations in a row without learning signal.
        estimator: What the advantage estimator remembers.
        seconds_before: Seconds spent by the parts of the run before the last resume.
    """

    iteration: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    best_at: int | None = None
    best: float = float("-inf")
    idle: int = 0
    estimator: dict[str, Any] = field(default_factory=dict)
    seconds_before: float = 0.0
    _run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _started: float = field(default_factory=time.perf_counter)
    _iteration_started: float = 0.0
    _rollout_ended: float = 0.0
    _in_iteration: bool = False
    _saved_at: int | None = None
    _saved_evaluation: int | None = None
    _saved_time: float = field(default_factory=time.perf_counter)
    _lightning: TrainerState = field(default_factory=TrainerState)
    _diagnoses: tuple[Finding, ...] = ()
    _lasting: tuple[Finding, ...] | None = None

    @property
    def diagnoses(self) -> tuple[Finding, ...]:
        """What kept the newest iteration from learning."""
        return self._diagnoses

    @property
    def lasting(self) -> tuple[Finding, ...]:
        """What kept every iteration since the start or the last resume from learning, in the newest one's words."""
        return self._lasting or ()

    def diagnosed(self, found: tuple[Finding, ...]) -> None:
        """Note what keeps an iteration from learning; what the first one finds is said at once."""
        if self._lasting is None:
            for diagnosis in found:
                log.warning("%s", diagnosis.message)
            self._lasting = found
        causes = {diagnosis.cause for diagnosis in self._lasting}
        self._diagnoses = found
        self._lasting = tuple(diagnosis for diagnosis in found if diagnosis.cause in causes)

    @property
    def fn(self) -> TrainerFn | None:
        """Which of the trainer's methods runs, or ran last."""
        return self._lightning.fn

    @property
    def stage(self) -> RunningStage | None:
        """Which part of it runs."""
        return self._lightning.stage

    @property
    def status(self) -> TrainerStatus:
        """How far it is."""
        return self._lightning.status

    def enter(self, fn: TrainerFn, stage: RunningStage) -> None:
        """Note what runs from now on."""
        self._lightning = TrainerState(TrainerStatus.RUNNING, fn, stage)

    def leave(self, status: TrainerStatus) -> None:
        """Note how it ended."""
        self._lightning.status = status
        self._lightning.stage = None

    @property
    def step(self) -> int:
        """Iteration under which loggers are given what happens now."""
        return self.iteration + self._in_iteration

    def begin_iteration(self) -> None:
        """Note that an iteration is under way."""
        self._in_iteration = True
        self._iteration_started = time.perf_counter()

    def end_rollout(self) -> None:
        """Note that the iteration has its rollout."""
        self._rollout_ended = time.perf_counter()

    def complete_iteration(self) -> None:
        """Count an iteration."""
        self.iteration += 1
        self._in_iteration = False

    def iteration_times(self) -> dict[str, float]:
        """Return how many seconds the iteration's rollout took, and everything since then."""
        return {
            "time/rollout": self._rollout_ended - self._iteration_started,
            "time/update": time.perf_counter() - self._rollout_ended,
        }

    @property
    def saved_at(self) -> int | None:
        """Iteration of the newest checkpoint in the run folder, as far as this part of the run has written or read one."""
        return self._saved_at

    @property
    def is_saved(self) -> bool:
        """Whether the newest checkpoint holds all there is, the newest validation included."""
        return self._saved_at == self.iteration and self._saved_evaluation == self.evaluated_at

    @property
    def minutes_since_save(self) -> float:
        """Minutes since the newest checkpoint, or since the start or the last resume."""
        return (time.perf_counter() - self._saved_time) / 60

    def saved(self) -> None:
        """Note that there is a checkpoint of this state."""
        self._saved_at = self.iteration
        self._saved_evaluation = self.evaluated_at
        self._saved_time = time.perf_counter()

    def begin(self) -> None:
        """Start the clock."""
        self._started = self._saved_time = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds spent on the run so far."""
        return self.seconds_before + time.perf_counter() - self._started

    @property
    def evaluated_at(self) -> int | None:
        """Iteration of the newest validation."""
        return self.evaluations[-1]["iteration"] if self.evaluations else None

    def evaluated(self, result: Evaluation, *, highlights: Sequence[str] = ()) -> None:
        """Remember a validation, of its metrics those that sum a run up alone, and whether it is the best one."""
        scores = result.scores()
        metrics = scores.pop("metrics")
        kept = {name: metrics[f"validation/{name}"] for name in highlights if f"validation/{name}" in metrics}
        logged = {name: metrics[name] for name in _closing_names(result, highlights) if name in metrics}
        self.evaluations.append({"iteration": self.iteration, **scores, "highlights": kept, "logged": logged})
        if self.iteration and result.sampled is not None and result.sampled > self.best:
            self.best = result.sampled
            self.best_at = self.iteration

    def manifest(self, seed: int, groups: PolicyWorkers, data: Mapping[str, str]) -> Manifest:
        """Describe the run for a checkpoint."""
        agents = {
            agent.name: (name, agent) for name, group in groups.items() for agent in group.agents.values()
        }
        state = {
            item.name: getattr(self, item.name) for item in fields(self) if not item.name.startswith("_")
        }
        return Manifest(
            iteration=self.iteration,
            seed=seed,
            agents={name: group for name, (group, _) in agents.items()},
            templates={name: template_hash(agent) for name, (_, agent) in agents.items()},
            data=dict(data),
            run_id=self._run_id,
            state={
                **state,
                "best": None if self.best_at is None else self.best,
                "seconds_before": self.seconds,
            },
        )

    @property
    def run_id(self) -> str:
        """Mark by which a run knows what it has written, whichever process it runs in."""
        return self._run_id

    @classmethod
    def restore(cls, manifest: Manifest) -> RunState:
        """Rebuild from a manifest."""
        restored = cls(**manifest.state)
        restored._run_id = manifest.run_id or restored._run_id
        restored.best = float("-inf") if restored.best_at is None else restored.best
        return restored

    def summary(self, team: Team) -> dict[str, Any]:
        """Return the run's outcome: scores before and after, calls per agent, time and memory; scores are None if nothing was validated.

        ``logged_before`` and ``logged_after`` hold metrics under the names by which they are logged, the rows of the closing table.
        """
        first, last = (self.evaluations[0], self.evaluations[-1]) if self.evaluations else ({}, {})
        return {
            "metric": team.unwrapped.metric,
            "logged_before": first.get("logged", {}),
            "logged_after": last.get("logged", {}),
            "before": first.get("sampled"),
            "after": last.get("sampled"),
            "before_greedy": first.get("greedy"),
            "after_greedy": last.get("greedy"),
            "sources_before": first.get("sources", {}),
            "sources_after": last.get("sources", {}),
            "calls_per_agent": last.get("calls", {}),
            "calls_per_agent_before": first.get("calls", {}),
            "highlights": last.get("highlights", {}),
            "highlights_before": first.get("highlights", {}),
            "best": None if self.best_at is None else {"iteration": self.best_at, "score": self.best},
            "iterations": self.iteration,
            "warnings": [diagnosis.message for diagnosis in self.lasting],
            "seconds": round(self.seconds, 1),
            "peak_rss_mb": round(peak_rss_mb(), 1),
        }


def _closing_names(result: Evaluation, highlights: Sequence[str]) -> list[str]:
    """Name the metrics of a validation that sum a run up: success overall and per data source, highlights, and calls per agent."""
    played = "validation" if result.greedy is None else "validation-greedy"
    sources = [f"{played}/source/{source}/success" for source in result.sources]
    return [
        *("validation/success", "validation-greedy/success"),
        *sources,
        *(f"validation/{name}" for name in highlights),
        *(f"validation/{agent}/calls" for agent in result.calls),
    ]


def limit_batches(batches: Sequence[T], limit: int | float) -> Sequence[T]:
    """Keep the first ``limit`` batches (int) or that share of them (float in [0, 1], at least one); 0 keeps none.

    >>> limit_batches([1, 2, 3, 4], 0.5), limit_batches([1, 2, 3, 4], 1)
    ([1, 2], [1])
    """
    if isinstance(limit, bool) or limit < 0 or (isinstance(limit, float) and limit > 1):
        raise ValueError(f"limit_val_batches must be an int >= 0 or a float in [0, 1], got {limit!r}")
    return batches[: max(int(len(batches) * limit), 1) if isinstance(limit, float) and limit else int(limit)]


def peak_rss_mb() -> float:
    """Largest resident memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024) if sys.platform == "darwin" else peak / 1024


def run_marks(data: TaskDataModule, agents: Mapping[str, Agent]) -> dict[str, str]:
    """Name what must be the same when a run goes on: data, which tasks are drawn when, and prompts."""
    order = {"data.tasks_per_iteration": str(data.tasks_per_iteration), "data.balance": data.balance}
    if data.weights:
        order["data.weights"] = repr(sorted(data.weights.items()))
    prompts = {f"the prompt of {name}": template_hash(agent) for name, agent in agents.items()}
    return {**{f"{split} data": mark for split, mark in data.fingerprints.items()}, **order, **prompts}


def template_hash(agent: Agent) -> str:
    """Identify the prompt an agent is given; equal hashes mean equal templates."""
    return hashlib.blake2b(repr(asdict(agent.template)).encode(), digest_size=8).hexdigest()
