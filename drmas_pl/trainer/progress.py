"""How far a run is, and how long the rest will take: what every display of a running run reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# Newest iterations over which their time is averaged.
LATEST: Final = 10
# Values of a metric that a trend shows.
TREND: Final = 8


@dataclass(slots=True)
class RunProgress:
    """What is known of a running run. Seconds are those of one clock, which everybody who asks passes as ``now``.

    Attributes:
        title: What is trained, in a few words.
        folder: Run folder.
        agents: Agents in the team's order.
        total: Iterations of the whole run.
        every: Iterations between validations; 0 for none but the last.
        began: When this part of the run began.
        validates: Whether there are validation tasks.
        first: Iterations that earlier parts of the run have completed.
        iteration: Completed iterations.
        phase: What the run does now.
        phase_began: When that began.
        validated_at: Iteration of the newest validation; None before the first.
        metrics: Newest value of every training metric.
        evaluations: Scores of every validation, oldest first, each with ``iteration``, ``sampled`` and ``greedy``.
        best_at: Iteration of the best sampled validation after training began.
        tokens_per_second: Sampled tokens of the newest rollout for each second of it.
        causes: What kept the newest iteration from learning, a few words each.
        conversation: Returns a trajectory of the newest rollout, to be printed; None before the first.
        trends: Newest values of metrics that a trend is shown of.
    """

    title: str
    folder: str
    agents: Sequence[str]
    total: int
    every: int
    began: float
    validates: bool = True
    first: int = 0
    iteration: int = 0
    phase: str = "start"
    phase_began: float = 0.0
    validated_at: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, Any]] = ()
    best_at: int | None = None
    tokens_per_second: float | None = None
    causes: Sequence[str] = ()
    conversation: Callable[[], Any] | None = None
    trends: Mapping[str, Sequence[float]] = field(default_factory=dict)
    _iteration_began: float | None = None
    _iteration_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    _validation_seconds: float | None = None

    def enter(self, phase: str, now: float) -> None:
        """Note what the run does from now on."""
        self.phase = phase
        self.phase_began = now

    def begin_iteration(self, now: float) -> None:
        """Note that an iteration is under way."""
        self._iteration_began = now

    def end_iteration(self, iteration: int, metrics: Mapping[str, float], now: float) -> None:
        """Note what an iteration is logged with, and how long it took."""
        # new mappings in place of changed ones, since a thread may be drawing the old ones
        trends = {name: (*self.trends.get(name, ()), value)[-TREND:] for name, value in metrics.items()}
        self.trends = {**self.trends, **trends}
        self.metrics = {**self.metrics, **metrics}
        self.iteration = iteration
        if self._iteration_began is not None:
            self._iteration_seconds.append(now - self._iteration_began)
        self._iteration_began = None

    def end_validation(
        self, evaluations: Sequence[Mapping[str, Any]], best_at: int | None, now: float
    ) -> None:
        """Note the scores of all validations so far, and how long the newest took."""
        self.evaluations = evaluations
        self.best_at = best_at
        self.validated_at = self.iteration
        self._validation_seconds = now - self.phase_began

    @property
    def busy(self) -> bool:
        """Whether an iteration or a validation is under way, and not just logged."""
        return self._iteration_began is not None or self.phase in ("validation", "save", "start")

    def elapsed(self, now: float) -> float:
        """Return for how many seconds this part of the run has gone."""
        return now - self.began

    @property
    def seconds_per_iteration(self) -> float | None:
        """Mean of the newest iterations, without validations; None before the first."""
        times = self._iteration_seconds
        return sum(times) / len(times) if times else None

    def seconds_left(self, now: float) -> float | None:
        """Return how long the rest will take, validations included; None while nothing has been timed.

        Args:
            now: The clock; what has passed of the iteration or validation under way is taken off its own time.
        """
        mean = self.seconds_per_iteration
        if mean is None:
            return None
        iterations = mean * (self.total - self.iteration)
        if self._iteration_began is not None:
            iterations -= min(now - self._iteration_began, mean)
        due = self.validations_left()
        validations = (self._validation_seconds or 0.0) * due
        under_way = self.phase == "validation" and self.validated_at != self.iteration
        if under_way and self._validation_seconds is not None:
            validations -= min(now - self.phase_began, self._validation_seconds)
        return iterations + validations

    def validations_left(self) -> int:
        """Count the validations that are still to come, the one after the last iteration included."""
        if not self.validates:
            return 0
        done = self.iteration if self.validated_at == self.iteration else self.iteration - 1
        due = self.total // self.every - max(done, 0) // self.every if self.every else 0
        last_is_due = bool(self.every) and self.total % self.every == 0
        ended = self.validated_at == self.total
        return due if last_is_due or ended else due + 1
