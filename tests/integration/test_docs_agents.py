"""The code of docs/agents.md runs as it stands, on a run of the shipped search team."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from drmas_pl.agent import Agent
from drmas_pl.tools.train import main

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
RUN = "+env=search +agents=hierarchy trainer.max_iterations=2 data.tasks_per_iteration=2 rollout.samples=2 data.limit_validation=4"


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RUN.split(), "output_dir=RUN"]) == 0
    capsys.readouterr()
    names: dict[str, object] = {}
    for code in BLOCKS:
        exec(compile(code, str(PAGE), "exec"), names)
    assert "\nverifier: " in capsys.readouterr().out
    conversation = names["conversation"]
    assert conversation.turns[0].agent == "verifier" and conversation.outcome != "failed"  # type: ignore[attr-defined]
    searcher = names["searcher"]
    assert isinstance(searcher, Agent)
    again = Agent.load_from_checkpoint("sft/model")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), searcher.parameters(), strict=True))
    words = [
        *RUN.split(),
        "trainer.max_iterations=1",
        "output_dir=next",
        "agents.roles.search.model=sft/model",
    ]
    assert main(words) == 0
