"""Every preset of advantage, credit, loss, schedule and rollout trains the team that ships, from the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from drmas_pl.config.compose import Choices
from drmas_pl.tools.train import main

GROUPS = Choices.read().groups
# what an option needs besides itself
NEEDS = {
    "pass_at_k": ("advantage.k=2",),
    "gae": ("critic=value_head", "objective=ppo"),
    "value_head": ("advantage=gae",),
    "marshal": ("credit=return_to_go",),
    "ahead": ("engine.copy=true",),
}
# one of each kind; that every preset can be built, and what it computes, is held by tests of one part alone
USUAL = {"gae", "return_to_go", "gspo", "round_robin", "ahead"}
PRESETS = [
    pytest.param(group, option, marks=[] if option in USUAL else pytest.mark.slow)
    for group in ("advantage", "credit", "objective", "schedule", "rollout", "critic")
    for option in GROUPS.get(group, [])
    if (group, option) != ("critic", "none")
]
SHORT = (
    "trainer.max_iterations=1",
    "trainer.record=[]",
    "rollout.samples=4",
    "data.tasks_per_iteration=6",
    "data.limit_validation=2",
    "evaluation.greedy=false",
    "model.max_new_tokens=12",
    "logger=none",
)


def train(*words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Train the team for one iteration and return its metrics."""
    monkeypatch.chdir(folder)
    assert main(["+env=search", "+agents=hierarchy", *SHORT, *words, "output_dir=run"]) == 0
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    return next(record for record in records if "train/reward" in record)


@pytest.mark.parametrize(("group", "option"), PRESETS, ids=lambda word: word)
def test_preset_trains_one_iteration(
    group: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = train(f"{group}={option}", *NEEDS.get(option, ()), folder=tmp_path, monkeypatch=monkeypatch)
    assert record["train/group/shared/steps"] >= 1 and record["train/group/shared/skipped"] == 0
    assert 0 < record["train/group/shared/grad_norm"] < math.inf
    assert all(math.isfinite(value) for value in record.values())


@pytest.mark.parametrize("precision", [pytest.param("bf16-mixed", marks=pytest.mark.slow), "bf16-true"])
def test_half_precision_plays_every_turn(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = train(f"trainer.precision={precision}", folder=tmp_path, monkeypatch=monkeypatch)
    assert record["train/failed"] == 0 and record["train/group/shared/steps"] >= 1
    assert all(math.isfinite(value) for value in record.values())
