"""Say what a grader concluded.

Place in the data flow: graders return a ``Verdict``, environments turn it into reward and outcome, metrics count its reasons.
``ungradable`` never earns anything: the task is dropped and counted instead of being taught from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["correct", "wrong", "ungradable", "truncated"]
Reason = Literal[
    "string",
    "number",
    "symbolic",
    "different",
    "no box",
    "empty box",
    "unreadable answer",
    "answer too large",
    "unfinished box",
    "unfinished think",
    "unreadable reference",
    "reference too large",
    "timeout",
    "worker died",
    "grader error",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Hold a grader's conclusion about one answer.

    Attributes:
        status: The conclusion; ``ungradable`` blames the reference or the grader, never the answer.
        reason: For correct answers the layer that decided; otherwise what went wrong. A closed set, fit for metric names.
        extracted: The answer that was compared; empty when none was found.

    Example:
        >>> Verdict("correct", "number", "42").score
        1.0
    """

    status: Grade
    reason: Reason
    extracted: str = ""

    @property
    def score(self) -> float:
        """Return 1.0 for a correct answer and 0.0 for anything else."""
        return 1.0 if self.status == "correct" else 0.0
