"""Where the time of a rollout goes: LLM calls and environment steps of every trajectory, from begin to end.

Times are seconds of the clock of the collector's event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """Something that a trajectory waited for.

    Attributes:
        trajectory: Number of the trajectory, in the order in which they were begun.
        agent: Who was generated for; None for a step of the environment.
        start: When it was asked for.
        end: When it was there.
        tokens: Sampled tokens.
    """

    trajectory: int
    agent: str | None
    start: float
    end: float
    tokens: int = 0


@dataclass(slots=True)
class Timeline:
    """What a collector fills in while it plays; several collections of one rollout follow each other.

    Attributes:
        spans: In the order in which they ended.
        trajectories: How many trajectories were begun.
        seconds: How long the collections took.
    """

    spans: list[Span] = field(default_factory=list)
    trajectories: int = 0
    seconds: float = 0.0

    def begin_trajectory(self) -> int:
        """Return the number of a trajectory that begins."""
        self.trajectories += 1
        return self.trajectories - 1


def engine_metrics(timeline: Timeline, groups: Mapping[str, Iterable[str]]) -> dict[str, float]:
    """Return how the engine of every worker group was used.

    Args:
        timeline: Of one rollout.
        groups: Names of agents by name of their worker group.

    Returns:
        Share of the time in which it had something to do, tokens per second and mean number of requests under way, by group.

    >>> timeline = Timeline([Span(0, "solver", 0.0, 1.0, 30), Span(1, "solver", 0.5, 2.0, 50)], 2, 4.0)
    >>> engine_metrics(timeline, {"shared": ["solver"]})
    {'time/shared/engine_busy': 0.5, 'time/shared/tokens_per_second': 20.0, 'time/shared/queue_length': 0.625}
    """
    if timeline.seconds <= 0:
        return {}
    group_of = {agent: group for group, agents in groups.items() for agent in agents}
    by_group: dict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.agent is not None:
            by_group[group_of[span.agent]].append(span)
    found = {}
    for group in groups:
        spans = by_group[group]
        found[f"time/{group}/engine_busy"] = _covered(spans) / timeline.seconds
        found[f"time/{group}/tokens_per_second"] = sum(span.tokens for span in spans) / timeline.seconds
        found[f"time/{group}/queue_length"] = sum(map(_seconds, spans)) / timeline.seconds
    return found


def trajectory_metrics(timeline: Timeline) -> dict[str, float]:
    """Return how long the longest trajectory took, and which share of all their time environments took.

    >>> trajectory_metrics(Timeline([Span(0, "solver", 0.0, 1.0, 30), Span(0, None, 1.0, 4.0)], 1, 4.0))
    {'time/longest_trajectory': 4.0, 'time/environment_share': 0.75}
    """
    begun: dict[int, float] = {}
    longest = 0.0
    for span in sorted(timeline.spans, key=lambda span: span.start):
        begun.setdefault(span.trajectory, span.start)
    for span in timeline.spans:
        longest = max(longest, span.end - begun[span.trajectory])
    total = sum(map(_seconds, timeline.spans))
    environment = sum(_seconds(span) for span in timeline.spans if span.agent is None)
    return {
        "time/longest_trajectory": longest,
        "time/environment_share": environment / total if total > 0 else 0.0,
    }


def _seconds(span: Span) -> float:
    return span.end - span.start


def _covered(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one of the spans runs."""
    return sum(end - start for start, end in _merged(spans))


def _merged(spans: Iterable[Span]) -> Iterator[tuple[float, float]]:
    """Yield the intervals that spans cover, none of which touch each other."""
    reached: tuple[float, float] | None = None
    for span in sorted(spans, key=lambda span: span.start):
        if reached is not None and span.start <= reached[1]:
            reached = (reached[0], max(reached[1], span.end))
            continue
        if reached is not None:
            yield reached
        reached = (span.start, span.end)
    if reached is not None:
        yield reached
