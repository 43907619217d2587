"""Counts over all recorded trajectories of one phase and iteration: who calls whom, and how responses and rewards look."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

START = "start"
RIGHT = "right"
WRONG = "wrong"


@dataclass(slots=True)
class AgentCounts:
    """Counts over an agent's turns.

    Attributes:
        turns: All of them.
        empty: Those whose response holds no visible character.
        invalid: Those that the grammar rejects.
        cut: Those ended by the limit of new tokens.
        reasons: Why turns were rejected.
    """

    turns: int = 0
    empty: int = 0
    invalid: int = 0
    cut: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, turn: Mapping[str, Any]) -> None:
        """Count one turn."""
        self.turns += 1
        self.cut += turn.get("finish_reason") == "length"
        empty = not str(turn.get("text", "")).strip()
        self.empty += empty
        parsed = turn.get("parsed") or {}
        if parsed.get("status", "valid") != "valid":
            self.invalid += 1
            self.reasons["empty" if empty else str(parsed.get("reason") or parsed["status"])] += 1


@dataclass(slots=True)
class Correlation:
    """Running sums of pairs."""

    count: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, x: float, y: float) -> None:
        """Count one pair."""
        self.count += 1
        self.sums = [total + term for total, term in zip(self.sums, (x, y, x * x, y * y, x * y), strict=True)]

    @property
    def value(self) -> float:
        """Pearson's coefficient; 0 where one side does not vary."""
        if not self.count:
            return 0.0
        x, y, xx, yy, xy = (total / self.count for total in self.sums)
        spread = (xx - x * x) * (yy - y * y)
        return (xy - x * y) / math.sqrt(spread) if spread > 1e-12 else 0.0


@dataclass(slots=True)
class TrajectoryStatistics:
    """Counts over trajectories of one phase and iteration; failed ones count as failed alone.

    Attributes:
        episodes: Trajectories that did not fail.
        failed: Trajectories that did.
        causes: Why they failed.
        edges: How often one move, or the start, was followed by another, or the end. A move has the name of its agent; one of several
            agents at once has all their names, such as ``first + second`` or ``solver ×4``.
        agents: Counts of each agent's turns.
        length: Sampled tokens against the reward.
        apart: Trajectories whose reward is not their success.
        solved: Success by task and sample.
    """

    episodes: int = 0
    failed: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    edges: Counter[tuple[str, str]] = field(default_factory=Counter)
    agents: dict[str, AgentCounts] = field(default_factory=dict)
    length: Correlation = field(default_factory=Correlation)
    apart: int = 0
    solved: dict[tuple[str, int], bool] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any], task: str) -> None:
        """Count one trajectory as it was recorded."""
        if record.get("outcome") == "failed":
            self.failed += 1
            self.causes[str(record.get("cause") or "unknown").strip().splitlines()[-1][:200]] += 1
            return
        self.episodes += 1
        turns = record.get("turns") or []
        success = bool(record.get("success"))
        reward = float(record.get("reward") or 0.0)
        self.edges.update(itertools.pairwise([START, *_moves(turns), RIGHT if success else WRONG]))
        for turn in turns:
            self.agents.setdefault(str(turn["agent"]), AgentCounts()).add(turn)
        tokens = sum(len(turn.get("response_ids") or turn.get("text", "")) for turn in turns)
        self.length.add(float(tokens), reward)
        self.apart += abs(reward - success) > 1e-6
        self.solved[task, int(record.get("sample") or 0)] = success

    def rates(self) -> list[list[Any]]:
        """Return the edges with their mean count per trajectory: from, to, rate."""
        ranked = sorted(self.edges.items(), key=lambda item: (-item[1], item[0]))
        return [[start, end, count / self.episodes] for (start, end), count in ranked]


def _moves(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each move; in old recordings each turn is one."""
    places = enumerate(turns)
    by_move = itertools.groupby(places, key=lambda item: item[1].get("move", f"turn {item[0]}"))
    return [_move_name(Counter(str(turn["agent"]) for _, turn in move)) for _, move in by_move]


def _move_name(agents: Counter[str]) -> str:
    return " + ".join(name if count == 1 else f"{name} ×{count}" for name, count in sorted(agents.items()))
