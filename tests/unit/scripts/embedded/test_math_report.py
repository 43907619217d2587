"""What is said about the arithmetic team, and how the shipped model plays."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from drmas_pl.types import Task, Trajectory
from scripts.embedded.math_report import report, summarise

SHIPPED = Path(__file__).parents[4] / "drmas_pl" / "embedded" / "models" / "tiny-math"


def played(source: str, *, success: bool, **metrics: float) -> Trajectory:
    return Trajectory(
        Task(source, "?", ("1",), source), 0, (), float(success), "terminated", success, metrics
    )


def test_metrics_count_only_where_they_exist() -> None:
    line = summarise(
        [
            played(
                "chain_sum/3x1", success=True, rounds=1, first_attempt_correct=1, verifier_approves_correct=1
            ),
            played(
                "chain_sum/3x1", success=False, rounds=1, first_attempt_correct=0, verifier_rejects_wrong=0
            ),
            played(
                "chain_sum/2x2", success=True, rounds=2, first_attempt_correct=0, verifier_rejects_wrong=1
            ),
            played(
                "chain_sum/2x2", success=True, rounds=2, first_attempt_correct=1, verifier_approves_correct=0
            ),
        ]
    )
    assert (
        "success 0.750  first attempt 0.500  verifier approves right 0.500, rejects wrong 0.500, balanced 0.500  rounds 1.50"
        in line
    )
    assert line.endswith("2x2 1.000  3x1 0.500")


@pytest.mark.slow
def test_the_shipped_model_is_a_mediocre_team() -> None:
    sampled, greedy = report(
        AutoModelForCausalLM.from_pretrained(SHIPPED), AutoTokenizer.from_pretrained(SHIPPED), samples=1
    )
    for line, low, high in ((sampled, 0.45, 0.65), (greedy, 0.5, 0.7)):
        assert low < float(line.split("success ")[1].split()[0]) < high
        assert float(line.split("balanced ")[1].split()[0]) > 0.75
        assert float(line.split("valid ")[1].split()[0]) > 0.99
