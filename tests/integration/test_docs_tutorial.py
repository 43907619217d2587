"""The tutorial runs as it stands: own tasks and an own reward in at most 25 lines, and the page of that run."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from drmas_pl.tools.train import main

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
(COMMAND,) = re.findall(r"```bash\ndrmas-train (.*?)```", PAGE.read_text(), re.DOTALL)
WORDS = shlex.split(COMMAND.replace("\\\n", " "))
SHORT = ("trainer.max_iterations=1", "evaluation.every=1", "data.tasks_per_iteration=2", "rollout.samples=2")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page, in which its tasks were made, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "close_reward", raising=False)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    exec(compile(FILES["make_tasks.py"], str(PAGE), "exec"), {})
    return tmp_path


def outcome_of(folder: Path) -> dict[str, list[float]]:
    """Read what the page says of success: before and after, by split."""
    text = (folder / "report.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    (run,) = json.loads(found[1])["runs"]
    assert run["health"][-1]["level"] == "good" and run["graphs"] and run["kept"] > 0
    return {one["split"]: [one["before"][0], one["after"][0]] for one in run["outcomes"]}


def test_tasks_reward_and_command_take_at_most_twenty_five_lines() -> None:
    lines = [line for text in (*FILES.values(), COMMAND) for line in text.splitlines() if line.strip()]
    assert set(FILES) == {"make_tasks.py", "close_reward.py"} and len(lines) <= 25


def test_the_reward_pays_for_being_close(home: Path) -> None:
    space: dict[str, object] = {}
    exec(compile(FILES["close_reward.py"], str(PAGE), "exec"), space)
    close = space["close"]
    assert callable(close)
    assert [close(text, ["-4"]) for text in (r"\boxed{3} \boxed{-4}", r"\boxed{-1}", "-4")] == [
        1.0,
        0.25,
        0.0,
    ]


def test_the_tutorial_ends_with_a_page(home: Path) -> None:
    small = [word for word in WORDS if word.partition("=")[0] not in {one.partition("=")[0] for one in SHORT}]
    assert main([*small, *SHORT, "data.limit_validation=4", "logger=none"]) == 0
    assert set(outcome_of(home / "outputs/tutorial")) == {"validation", "validation-greedy"}


@pytest.mark.slow
def test_the_team_of_the_tutorial_learns(home: Path) -> None:
    assert main(WORDS) == 0
    for before, after in outcome_of(home / "outputs/tutorial").values():
        assert after > before + 0.05
