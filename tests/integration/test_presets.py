"""Every preset of advantage, credit, loss, schedule and rollout trains the team that ships, from the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from drmas_pl.tools.launch.compose import Choices
from drmas_pl.tools.train import main

GROUPS = Choices.read().groups
# what an option needs besides itself
NEEDS = {
    "pass_at_k": ("advantage.k=2",),
    "gae": ("critic=value_head", "objective=ppo"),
    "value_head": ("advantage=gae",),
    "marshal": ("credit=return_to_go",),
}
PRESETS = [
    (group, option)
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


@pytest.mark.parametrize(("group", "option"), PRESETS, ids=lambda word: word)
def test_preset_trains_one_iteration(group: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("drmas_pl.trainer.folder.plot_run", lambda *args, **kwargs: None)
    words = ["+env=search", "+agents=hierarchy", *SHORT, f"{group}={option}", *NEEDS.get(option, ()), "output_dir=run"]
    assert main(words) == 0
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    record = next(record for record in records if "train/reward" in record)
    assert record["train/group/shared/steps"] >= 1 and record["train/group/shared/skipped"] == 0
    assert 0 < record["train/group/shared/grad_norm"] < math.inf
    assert all(math.isfinite(value) for value in record.values())
