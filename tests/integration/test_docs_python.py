"""The code of docs/python.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), space)
    said = capsys.readouterr().out
    assert said.startswith("TrainingResult(2 iterations, success ") and "\nsolver: " in said
    assert "outputs/LoopTeam/" in said and "iteration-000002" in said


def test_the_program_takes_about_fifteen_lines() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 17
