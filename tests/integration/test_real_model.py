"""One full iteration of each team with a real pretrained model, SmolLM2-135M-Instruct, from the hub or its PyPI package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.errors import ConfigError
from drmas_pl.models.loading import resolve
from drmas_pl.tools.train import main


@pytest.fixture(scope="module", autouse=True)
def model() -> None:
    """Skip where the model cannot be had."""
    try:
        resolve("smollm2-135m")
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("env", "agents"), [("search", "hierarchy"), ("math", "loop")])
def test_one_iteration_with_a_real_model(env: str, agents: str, tmp_path: Path) -> None:
    small = [
        "data.tasks_per_iteration=2",
        "rollout.samples=2",
        "data.limit_validation=2",
        "trainer.max_iterations=1",
    ]
    words = [
        f"+env={env}",
        f"+agents={agents}",
        "model=smollm2-135m",
        f"output_dir={tmp_path}/run",
        "agents.on_invalid=continue",
        *small,
    ]
    assert main(words) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["iterations"] == 1 and sum(summary["calls_per_agent"].values()) >= 1
    spoken = (tmp_path / "run" / "trajectories" / "validation-000001.jsonl").read_text().splitlines()
    turns = [turn for line in spoken for turn in json.loads(line)["turns"]]
    assert turns and all(turn["response_ids"] for turn in turns)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_model_sizes_in_one_team(tmp_path: Path) -> None:
    small = [
        "data.tasks_per_iteration=2",
        "rollout.samples=2",
        "data.limit_validation=2",
        "trainer.max_iterations=1",
    ]
    words = [
        "+env=search",
        "+agents=hierarchy",
        "agents.roles.answer.model=smollm2-135m",
        f"output_dir={tmp_path}/run",
        *small,
    ]
    assert main(words) == 0
    groups = sorted(
        path.name for path in (tmp_path / "run" / "checkpoints" / "iteration-000001" / "groups").iterdir()
    )
    assert len(groups) == 2 and all(name.startswith("shared-") for name in groups)
