"""Real runs that are broken on purpose: the first problem that their page names is the cause."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from drmas_pl.tools.train import main

HERE = "tests.integration.test_broken_runs"


def all_equal(text: str, references: Sequence[str]) -> float:
    """Pay nothing, whatever is said."""
    return 0.0


def paid_length(text: str, references: Sequence[str]) -> float:
    """Pay for every character."""
    return len(text) / 1000


@pytest.mark.parametrize(
    ("reward", "title", "cause"),
    [
        ("all_equal", "Groups of solver and verifier without signal", "nearly all samples fail"),
        ("paid_length", "The reward pays for length", "the environment's reward likely grows with the text"),
    ],
)
def test_a_broken_run_names_its_cause(
    reward: str, title: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        "+env=math",
        "+agents=loop",
        f"env.reward._target_={HERE}.{reward}",
        "output_dir=run",
        "logger=none",
    )
    small = (
        "trainer.max_iterations=2",
        "data.tasks_per_iteration=6",
        "rollout.samples=4",
        "data.limit_validation=4",
    )
    assert main([*words, *small, "trainer.record=[train]", "evaluation.greedy=false"]) == 0
    text = Path("run/report.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    problems = [one for one in json.loads(found[1])["runs"][0]["health"] if one["level"] == "bad"]
    assert problems[0]["title"] == title and cause in problems[0]["text"], problems
