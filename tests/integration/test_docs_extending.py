"""The code of docs/extending.md runs as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
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


def test_the_agents_of_an_example_move_at_once(home: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(block("class PenniesTeam"), str(PAGE), "exec"), names)
    team = names["PenniesTeam"](names["env"])
    team.reset(seed=0)
    info = team.step({"same": "<coin>heads</coin>", "other": "<coin>tails</coin>"})[4]
    assert info["rewards"] == {"same": -1.0, "other": 1.0}


def test_the_example_trains_without_the_programs(home: Path) -> None:
    exec(compile(block("MultiAgentTrainer("), str(PAGE), "exec"), {})
    assert (home / "outputs" / "guessing" / "summary.json").is_file()


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/extending.md", marks=pytest.mark.slow)])
def test_the_first_command_runs_as_written_in_an_empty_folder(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    source = re.search(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    assert source is not None
    command = re.search(r"```bash\n(drmas-train .*?)```", text[source.end() :], re.DOTALL)
    assert command is not None
    home, programs = tmp_path / "empty", tmp_path / "bin"
    home.mkdir()
    (home / source[1]).write_text(source[2])
    result = subprocess.run(
        ["bash", "-c", command[1]],
        cwd=home,
        env=installed(programs),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stderr
    (summary,) = home.glob("outputs/*/*/summary.json")
    assert json.loads(summary.read_text())["iterations"] == 2


def installed(programs: Path) -> dict[str, str]:
    """Return an environment with the script that pip makes of the entry point, and without the working directory on the path."""
    programs.mkdir()
    script = programs / "drmas-train"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom drmas_pl.tools.train import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
