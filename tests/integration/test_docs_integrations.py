"""The code of docs/integrations.md runs as it stands, and so does its first command in small."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from drmas_pl.tools.train import main

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
TEXT = PAGE.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHORT = [
    "model=tiny_random",
    "model.max_new_tokens=6",
    "trainer.max_iterations=1",
    "data.tasks_per_iteration=2",
    "rollout.samples=2",
    "evaluation.samples=1",
    "evaluation.greedy=false",
    "data.validation.size=2",
    "logger=none",
    "output_dir=run",
]


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """PettingZoo sets this variable when it is first imported."""
    monkeypatch.setenv("SDL_AUDIODRIVER", "dsp")


def block(text: str) -> str:
    """Return the only block that contains ``text``."""
    (found,) = [code for code in BLOCKS if text in code]
    return found


def logged_by(folder: Path) -> dict[str, float]:
    """Return the last value of everything that a run logged."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {name: value for line in lines for name, value in json.loads(line).items()}


def test_functions_give_an_environment_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("MountainCar"), str(PAGE), "exec"), {})
    assert re.fullmatch(
        r"The car is at -0\.\d+ and moves at 0\.000\.\n\nPossible actions: 0 \(left\), 1 \(wait\), 2 \(right\)\.\n",
        capsys.readouterr().out,
    )


def test_a_gymnasium_environment_trains_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = re.search(r"```bash\ndrmas-train (\+env=gymnasium .*?)```", TEXT, re.DOTALL)
    assert command is not None
    words = [word for word in command[1].replace("\\\n", " ").split() if not word.startswith("model=")]
    assert main([*words, *SHORT, "env.max_turns=3", "env.illegal_reward=-0.25"]) == 0
    logged = logged_by(tmp_path / "run")
    # an untrained model names no action in any of its 3 turns
    names = ("train/illegal_actions", "train/reward", "train/truncated", "train/failed")
    assert [logged[name] for name in names] == [3.0, -0.75, 1.0, 0.0]
    row = json.loads((tmp_path / "run/trajectories/validation-000001.jsonl").read_text().splitlines()[0])
    assert row["turns"][0]["observation"].startswith("[S]FFF\nFHFH")


@pytest.mark.adapters
@pytest.mark.filterwarnings("ignore")
def test_the_code_on_games_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("connect_four"), str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith(
        "You are player_0.\nYour discs: 0, your opponent's: 0.\nPossible"
    )
    exec(compile(block("as_aec_env(LoopTeam"), str(PAGE), "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["solver 0.0", "solver 0.0", "solver 0.0"]


@pytest.mark.adapters
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "words",
    [
        ("+env=pettingzoo", "env.make=pettingzoo.classic.connect_four_v3:env", "+agents=players"),
        (
            "+env=pettingzoo",
            "env.make=pettingzoo.classic.rps_v2:parallel_env",
            "+agents=players",
            "sharing=per_agent",
        ),
        (
            "+env=textarena",
            "env.id=TicTacToe-v0",
            "+agents=players",
            "agents.roles.player_1.trainable=false",
        ),
        ("+env=textarena", "env.id=TicTacToe-v0", "+agents=single_action", "env.opponents.player_1=optimal"),
        ("+env=textarena", "env.id=GuessTheNumber-v0", "+agents=single_action"),
    ],
)
def test_games_train_from_the_command_line(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, *SHORT, "env.max_turns=6"]) == 0
    logged = logged_by(tmp_path / "run")
    assert logged["train/failed"] == 0.0
    if "+agents=players" in words:
        rewards = [logged[f"train/player_{number}/reward"] for number in (0, 1)]
        # an untrained model says nothing of use, so that who is first, or both at once, loses by the rules
        at_once = "parallel" in words[1]
        textarena = "+env=textarena" in words
        assert rewards == ([-1.0, -1.0] if at_once else [-1.0, 1.0] if textarena else [-1.0, 0.0])
