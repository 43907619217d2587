"""The code of docs/extending.md runs as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from drmas_pl.tools.train import main

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the page's module, as the working directory."""
    (tmp_path / "guessing.py").write_text(BLOCKS[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guessing", raising=False)
    return tmp_path


def block(text: str) -> str:
    """Return the only block that contains ``text``."""
    (found,) = [code for code in BLOCKS if text in code]
    return found


def test_each_part_is_at_most_fifty_lines() -> None:
    assert BLOCKS[0].count("\n") <= 100


def test_the_example_keeps_the_contracts(home: Path) -> None:
    exec(compile(block("check_team(GuessTeam"), str(PAGE), "exec"), {})


def test_the_example_trains_without_the_programs(home: Path) -> None:
    exec(compile(block("MultiAgentTrainer("), str(PAGE), "exec"), {})
    assert (home / "outputs" / "guessing" / "summary.json").is_file()


def test_the_example_trains_from_the_command_line(home: Path) -> None:
    command = re.search(r"python tools/train.py (\+env=custom.*?)```", PAGE.read_text(), re.DOTALL)
    assert command is not None
    words = command[1].replace("\\\n", " ").replace("model=smollm2-135m", "model=tiny_random").split()
    assert main([*words, "output_dir=run", "rollout.samples=2"]) == 0
    assert (home / "run" / "summary.json").is_file()
