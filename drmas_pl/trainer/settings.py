"""Settings of rollout and evaluation that the loop reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from drmas_pl.rollout.tree import Select
from drmas_pl.types import SamplingParams
from drmas_pl.utils.validation import check_fields
from drmas_pl.workers.engine_phases import Residency

Sampler = Literal["parallel", "tree"]


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How training trajectories are played.

    Attributes:
        samples: Trajectories per task; under parallel sampling the size of a task's group.
        sampler: Whether trajectories are sampled each on its own (``parallel``), or every prompt is given several candidates of which one
            is played (``tree``).
        candidates: K of ``tree``: candidates per prompt, the size of a prompt's group.
        select: Which candidate is played, or ``all``, see :class:`~drmas_pl.rollout.tree.TreeSampling`.
        select_temperature: Temperature of ``select=softmax``.
        depth: Turns with several candidates under ``select=all``.
        max_draws: How often tasks are drawn until every trained task carries signal (dynamic sampling); 1 trains on what was drawn.
        align_turns: D by agent name: turns of the agent that each trajectory trains, others dropped or repeated at random.
        max_calls: Bound on LLM calls per trajectory.
        env_workers: Threads for environment steps; 0 steps in the event loop.
        env_latency: Engine steps after which a trajectory goes on whose environment step ran in a thread, with engines of this process.
        env_timeout: Seconds that an environment step may take in a thread; None sets no limit.
        residency: Whether ``all`` engines are awake during a rollout phase, or ``one`` at a time.
        max_staleness: Largest number of updates by which the weights that sample a token may be behind those that learn from it: 0 plays
            and learns in turns, k plays up to k iterations ahead while groups learn.
        max_concurrent: Largest number of trajectories at a time; None plays all.
        retries: How often a training trajectory that raised is played again.
        max_failed_share: Share of failed trajectories above which the run stops.
        max_idle_iterations: Iterations in a row without any learning signal after which the run stops.
        waterfall: Whether a picture of every rollout is drawn, that shows what each trajectory waited for.
    """

    samples: int = 8
    sampler: Sampler = "parallel"
    candidates: int = 8
    select: Select = "argmax"
    select_temperature: float = 1.0
    depth: int = 3
    max_draws: int = 1
    align_turns: Mapping[str, int] = field(default_factory=dict)
    max_calls: int = 64
    env_workers: int = 0
    env_latency: int = 16
    env_timeout: float | None = None
    residency: Residency = "all"
    max_staleness: int = 0
    max_concurrent: int | None = None
    retries: int = 0
    max_failed_share: float = 0.2
    max_idle_iterations: int = 20
    waterfall: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        least = {
            "samples": 1,
            "candidates": 1,
            "depth": 1,
            "max_draws": 1,
            "max_calls": 1,
            "max_idle_iterations": 1,
            "max_concurrent": 1,
            "env_workers": 0,
            "env_latency": 0,
            "max_staleness": 0,
            "retries": 0,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"rollout.{name} must be at least {low}, got {value}")
        if self.env_timeout is not None and self.env_timeout <= 0:
            raise ValueError(f"rollout.env_timeout must be above 0 seconds, or None, got {self.env_timeout}")
        if self.env_timeout is not None and not self.env_workers:
            raise ValueError(
                f"rollout.env_timeout={self.env_timeout} limits environment steps in threads; set rollout.env_workers"
            )
        if any(turns < 1 for turns in self.align_turns.values()):
            raise ValueError(
                f"rollout.align_turns must name at least 1 turn per agent, got {dict(self.align_turns)}"
            )
        self._check_choices()
        if not 0 < self.select_temperature < float("inf"):
            raise ValueError(
                f"rollout.select_temperature must be positive and finite, got {self.select_temperature}; "
                "for the candidate of the highest score use rollout.select=argmax"
            )
        if not 0 <= self.max_failed_share <= 1:
            raise ValueError(f"rollout.max_failed_share must be in [0, 1], got {self.max_failed_share}")

    def _check_choices(self) -> None:
        for name, kind in (("sampler", Sampler), ("select", Select), ("residency", Residency)):
            if getattr(self, name) not in get_args(kind):
                names = " or ".join(get_args(kind))
                raise ValueError(f"rollout.{name} must be {names}, got {getattr(self, name)!r}")

    @property
    def branches(self) -> bool:
        """Whether prompts are given several candidates."""
        return self.sampler == "tree" and self.candidates > 1

    @property
    def compared(self) -> int:
        """Number of responses to a task's first prompt."""
        return self.samples * (self.candidates if self.branches else 1)


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """How validation and test are played.

    Attributes:
        samples: Sampled trajectories per task, k of avg@k.
        sampling: Overrides of each agent's sampling for the sampled pass, such as ``{"temperature": 0.6, "top_p": 0.95}``.
        greedy: Whether a second pass at temperature 0 is played.
        pass_at: Values of k for pass@k; those above ``samples`` are rejected.
        every: Iterations between validations; 0 validates before and after training only.
        retries: How often a trajectory that raised is played again.
    """

    samples: int = 1
    sampling: Mapping[str, Any] = field(default_factory=dict)
    greedy: bool = True
    pass_at: tuple[int, ...] = ()
    every: int = 0
    retries: int = 2

    def __post_init__(self) -> None:
        check_fields(self)
        if self.samples < 1:
            raise ValueError(f"evaluation.samples must be at least 1, got {self.samples}")
        for name in ("every", "retries"):
            if getattr(self, name) < 0:
                raise ValueError(f"evaluation.{name} must be at least 0, got {getattr(self, name)}")
        object.__setattr__(self, "pass_at", tuple(self.pass_at))
        wrong = [k for k in self.pass_at if not 1 <= k <= self.samples]
        if wrong:
            raise ValueError(
                f"evaluation.pass_at holds {wrong}, but each k must be between 1 and evaluation.samples={self.samples}"
            )
        SamplingParams(**self.sampling)
