"""Programming tasks from the command line: a whole run, with programs in the sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drmas_pl.agents.coder_tester.roles import ProgramGrammar
from drmas_pl.parsing import Parsed
from drmas_pl.tools.train import main
from tests.helpers.launching import configure


def test_coder_and_tester_train_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An untrained model never closes a block; its text is taken for a program here, so that programs do run.
    monkeypatch.setattr(
        ProgramGrammar,
        "parse",
        lambda self, text, finish_reason="stop": Parsed("valid", action=f"print({text!r})"),
    )
    words = ["model=tiny_random", "model.max_new_tokens=4", "trainer.max_iterations=1", "rollout.samples=2"]
    words += [
        "data.tasks_per_iteration=2",
        "data.limit_validation=2",
        "data.limit_test=2",
        "agents.on_invalid=continue",
    ]
    assert (
        main(["+env=code", "+agents=coder_tester", *words, "logger=none", f"output_dir={tmp_path}/run"]) == 0
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["iterations"] == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    logged = {name: value for line in lines for name, value in json.loads(line).items()}
    assert logged["train/success"] == 0.0
    assert logged["train/rounds"] == 2.0
    assert logged["train/pass_rate"] == 0.0


@pytest.mark.parametrize(("env", "agents"), [("code", "coder_tester"), ("math_tool", "reasoner_tool")])
def test_programs_of_several_trajectories_run_side_by_side(env: str, agents: str) -> None:
    words = [f"+env={env}", f"+agents={agents}"]
    assert configure(*words)["rollout"]["env_workers"] == 8
    assert configure(*words, "rollout.env_workers=0")["rollout"]["env_workers"] == 0
    assert configure("+env=math", "+agents=loop")["rollout"]["env_workers"] == 0
