"""One seed, one run: the same trajectories, metrics and weights, whatever plays at the same time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drmas_pl.data.recorded import read_trajectories
from drmas_pl.trainer.settings import RolloutSettings
from drmas_pl.trainer.trainer import MultiAgentTrainer
from tests.helpers.runs import run, same, timeless, weights
from tests.helpers.toy import make_data

RECORD = ("train", "validation")


def recorded(trainer: MultiAgentTrainer) -> dict[str, Any]:
    return {path.name: read_trajectories(path) for path in sorted(trainer.folder.path.glob("trajectories/*"))}


@pytest.mark.parametrize(
    "changes",
    [{}, {"rollout": RolloutSettings(samples=4, env_workers=4)}],
    ids=["again", "threads"],
)
def test_the_same_seed_gives_the_same_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    first, second = (
        run(tmp_path / "1", seed=3, record=RECORD),
        run(tmp_path / "2", seed=3, record=RECORD, **changes),
    )
    assert len(recorded(first)) == 6 and recorded(first) == recorded(second)
    assert timeless(first) == timeless(second)
    assert same(weights(first.groups), weights(second.groups))


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    first, second = (
        run(tmp_path / "1", seed=3, record=RECORD),
        run(tmp_path / "2", seed=4, data=make_data(seed=4), record=RECORD),
    )
    assert recorded(first)["train-000001.jsonl"] != recorded(second)["train-000001.jsonl"]
    assert not same(weights(first.groups), weights(second.groups))


def test_every_evaluation_of_equal_weights_draws_the_same_samples(tmp_path: Path) -> None:
    frozen = {"binding": {name: {"trainable": False} for name in ("writer", "editor")}}
    played = recorded(run(tmp_path, groups=frozen, record=("validation",)))
    before, after = (
        [replace(trajectory, iteration=None) for trajectory in played[f"validation-{iteration:06d}.jsonl"]]
        for iteration in (0, 4)
    )
    assert before == after and before
