"""The training program from the command line: runs, sweeps, own classes, and what it says when something is wrong."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from drmas_pl.errors import TrainingStopped
from drmas_pl.tools.train import main
from drmas_pl.trainer.trainer import MultiAgentTrainer
from drmas_pl.types import Task
from tests.helpers.toy import TEAM_WORDS, EvenEnv

ROOT = Path(__file__).parents[2]
HERE = "tests.integration.test_cli_train"
TOY = [
    "+env=custom",
    f"env._target_={HERE}.ToyEnv",
    *TEAM_WORDS,
]
SHORT = [
    "model=tiny_random",
    "model.max_new_tokens=3",
    "trainer.max_iterations=1",
    "rollout.samples=2",
    "data.tasks_per_iteration=2",
]

ENV = '''
from drmas_pl.env import StepResult, TextEnv
from drmas_pl.types import Task


class Vowels(TextEnv):
    """Solved by a text with at least ``wanted`` vowels."""

    def __init__(self, wanted: int = 1) -> None:
        super().__init__([Task(f"vowels-{index}", f"Say {index} vowels.") for index in range(4)])
        self.wanted = wanted

    def begin(self, task: Task) -> str:
        return task.question

    def act(self, action: str) -> StepResult:
        enough = sum(action.count(vowel) for vowel in "aeiou") >= self.wanted
        return StepResult("", reward=float(enough), terminated=True, success=enough)
'''
TEAM = '''
from drmas_pl.team import Move, Team
from drmas_pl.types import Message

from my_role import ANYTHING


class Relay(Team):
    """One agent drafts, the other one decides."""

    possible_agents = ("drafter", "decider")
    grammars = {"drafter": ANYTHING, "decider": ANYTHING}

    def begin(self) -> tuple[str, ...]:
        return ("drafter",)

    def play(self, agent, parsed):
        record = Message(agent, "draft", parsed.action)
        return Move(("decider",), messages=(record,)) if agent == "drafter" else Move(action=parsed.action)
'''
ROLE = '''
from drmas_pl.agent import Agent
from drmas_pl.parsing import Parsed
from drmas_pl.prompts import Template


class Anything:
    def parse(self, text, finish_reason="stop"):
        return Parsed("valid", action=text)


ANYTHING = Anything()


class Talker(Agent):
    """Says whatever it likes."""

    grammar = ANYTHING
    templates = {"full": Template(user="{question} {history}", formats={"draft": "{text}"}, chat=False)}
'''


class ToyEnv(EvenEnv):
    """A toy environment with tasks of its own, which may fail on purpose."""

    def __init__(self, fails: str = "never") -> None:
        if fails == "when built":
            raise RuntimeError("no such environment")
        super().__init__([Task(f"toy-{index}", f"toy {index}?") for index in range(4)])
        self.fails = fails

    def begin(self, task: Task) -> str:
        if self.fails == "when played":
            raise RuntimeError("the environment broke")
        return super().begin(task)


def run(*words: str) -> int:
    return main([*TOY, *SHORT, *words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_leaves_one_folder_that_tells_how_it_was_made(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("seed=3") == 0
    out = capsys.readouterr().out
    assert not logging.getLogger(
        "drmas_pl.workers.learner"
    ).disabled  # Hydra would silence what was imported before it
    assert "validation/editor/calls" in out and "custom plays custom" in out and "Traceback" not in out
    (place,) = folder.glob("outputs/custom-custom/*")
    assert [path.name for path in folder.iterdir()] == ["outputs"]
    config = yaml.safe_load((place / "config.yaml").read_text())
    assert (
        config["seed"] == 3
        and config["rollout"]["samples"] == 2
        and config["output_dir"] == f"outputs/custom-custom/{place.name}"
    )
    assert json.loads((place / "summary.json").read_text())["iterations"] == 1
    assert (place / "checkpoints/iteration-000001/manifest.json").is_file() and (place / "logs").is_dir()


def test_a_run_goes_on_in_its_folder_and_a_refused_one_spoils_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("output_dir=run", "logger=none") == 0
    before = (folder / "run/config.yaml").read_text()
    for words, message in (
        (["output_dir=run"], "already holds a run"),
        (
            ["output_dir=run", "resume=run", "trainer.max_iterations=2", "seed=9"],
            "the run has seed 0, not 9",
        ),
    ):
        assert run(*words, "logger=none") != 0
        assert message in capsys.readouterr().err
        assert (folder / "run/config.yaml").read_text() == before
    assert run("output_dir=run", "resume=run", "logger=none") == 0
    assert (folder / "run/config.yaml").read_text() == before
    assert run("resume=run", "trainer.max_iterations=2", "logger=none") == 0
    assert yaml.safe_load((folder / "run/config.yaml").read_text())["trainer"]["max_iterations"] == 2
    assert json.loads((folder / "run/summary.json").read_text())["iterations"] == 2


@pytest.mark.parametrize("given", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_sweep_runs_once_per_value_into_numbered_folders(folder: Path, given: bool) -> None:
    assert run("--multirun", "seed=0,1", "logger=none", *(["output_dir=x"] if given else [])) == 0
    (place,) = [folder / "x"] if given else folder.glob("outputs/multirun/*")
    assert sorted(path.name for path in place.iterdir()) == ["0", "1"]
    assert [yaml.safe_load((place / job / "config.yaml").read_text())["seed"] for job in "01"] == [0, 1]
    assert [path.name for path in folder.iterdir()] == ["x" if given else "outputs"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["rollout.sampels=3"], 2, "did you mean 'rollout.samples'"),
        (["optimizer.lr=abc"], 2, "optimizer.lr: Input should be a valid number"),
        (["rollout.samples=two"], 2, "rollout.samples: Input should be a valid integer"),
        (["trainer.devices=x"], 2, "trainer.devices: Input should be a valid integer"),
        (["trainer.precision=15"], 2, "trainer: MultiAgentTrainer rejects its settings: "),
        (["trainer.limit_val_batches=2.5"], 2, "limit_val_batches"),
        (
            ["trainer.callbacks=[{_target_: lightning.pytorch.callbacks.ModelCheckpoint}]"],
            2,
            "use checkpoint_every",
        ),
        (["seed=abc"], 2, "seed: Input should be a valid integer"),
        (["sharing=both"], 2, "sharing: Input should be 'shared', 'per_agent' or 'lora'"),
        (["data.train=missing.jsonl"], 1, "no file missing.jsonl"),
        (["data.tasks_per_iteration=0"], 2, "tasks_per_iteration must be at least 1"),
        (["resume=nowhere"], 1, "no checkpoint in nowhere"),
        (["model.path=random:huge"], 2, "no random model 'huge'"),
        (["env.fails='when built'"], 2, "env: ToyEnv failed with RuntimeError: no such environment"),
        (
            ["agents.roles.critic._target_=tests.helpers.toy.Speaker"],
            2,
            "agents.roles must name exactly ['writer', 'editor']",
        ),
        (["--multirun", "seed=0,1", "optimizer.lr=abc"], 2, "optimizer.lr: Input should be a valid number"),
    ],
)
def test_a_wrong_setting_is_one_line_and_leaves_nothing(
    words: list[str], code: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == code
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err + captured.out
    assert list(folder.iterdir()) == []


def test_a_world_that_breaks_while_played_ends_the_run_with_its_cause(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("env.fails='when played'", "trainer.env_check=false") == 1
    error = capsys.readouterr().err
    assert (
        "RuntimeError: the environment broke" in error
        and "max_failed_share" in error
        and "Traceback" not in error
    )


def test_a_world_that_breaks_is_refused_before_a_model_is_loaded(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drmas_pl.config.build.build_groups", None)
    assert run("env.fails='when played'") == 2
    error = capsys.readouterr().err
    assert "RuntimeError: the environment broke (" in error and "test_cli_train.py:" in error
    assert error.endswith("mend it, or skip this check with trainer.env_check=false\n")
    assert "Traceback" not in error and list(folder.iterdir()) == []


def test_the_configuration_can_be_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+env=search", "+agents=hierarchy", "--cfg", "job", "seed=5"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["seed"] == 5
    assert main(["-m", "--cfg", "job", "+env=search", "+agents=hierarchy"]) == 2
    assert "leave one of the two out" in capsys.readouterr().err
    assert main([]) == 2 and "choose env and agents" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python elsewhere, as a user does."""
    path = os.pathsep.join([str(ROOT), str(folder)])
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.slow
def test_own_world_team_and_role_need_no_more_than_their_targets(tmp_path: Path) -> None:
    for name, source in (("my_env", ENV), ("my_team", TEAM), ("my_role", ROLE)):
        assert len(source.splitlines()) <= 50
        (tmp_path / f"{name}.py").write_text(source)
    own = [
        "+env=custom",
        "env._target_=my_env.Vowels",
        "env.wanted=2",
        "+agents=custom",
        "agents._target_=my_team.Relay",
    ]
    roles = [f"agents.roles.{name}._target_=my_role.Talker" for name in ("drafter", "decider")]
    result = python(
        tmp_path,
        str(ROOT / "tools/train.py"),
        *own,
        *roles,
        *SHORT,
        "sharing=per_agent",
        "output_dir=run",
        "logger=none",
    )
    assert result.returncode == 0, result.stderr
    assert "validation/decider/calls" in result.stdout and "Traceback" not in result.stderr
    manifest = json.loads((tmp_path / "run/checkpoints/iteration-000001/manifest.json").read_text())
    assert manifest["agents"] == {"drafter": "drafter", "decider": "decider"}


PLAIN_ENV = """
import gymnasium
from drmas_pl.types import Task

class Lottery(gymnasium.Env):
    tasks = tuple(Task(f"n{n}", f"pick {n}") for n in range(4))
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return options["task"].question, {}
    def step(self, action):
        return "drawn", sum(map(ord, action)) % 2, True, False, {"metrics": {"letters": len(action)}}
"""
ALONE = [
    "+env=custom",
    "+agents=single",
    "agents.protocol=text",
    "agents.roles.actor._target_=drmas_pl.agents.single.TextActor",
    "model=tiny_random",
    "model.max_new_tokens=3",
    "trainer.max_iterations=2",
    "rollout.samples=2",
    "data.tasks_per_iteration=2",
    "output_dir=run",
]


def test_a_plain_gymnasium_environment_trains_to_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # the working directory alone makes it importable
    (folder / "lottery_env.py").write_text(PLAIN_ENV)
    monkeypatch.delitem(sys.modules, "lottery_env", raising=False)
    assert main([*ALONE, "env._target_=lottery_env.Lottery", "trainer.record=[train,validation]"]) == 0
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["iterations"], summary["metric"]) == (2, "success")
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["iteration"] for record in records] == [0, 1, 2, 2]
    last = (folder / "run" / "trajectories" / "validation-000002.jsonl").read_text().splitlines()
    played = [json.loads(line) for line in last]
    assert {row["outcome"] for row in played} == {"terminated"}
    sampled = [row for row in played if row["mode"] == "sampled"]
    assert all(row["success"] == (row["reward"] == 1.0) for row in played)
    assert summary["after"] == pytest.approx(sum(row["success"] for row in sampled) / len(sampled))
    assert all(
        "letters" in row["metrics"] for row in played if row["turns"][0]["parsed"]["status"] == "valid"
    )


@pytest.mark.slow
def test_an_environment_that_gymnasium_makes_is_played_from_its_start_states(folder: Path) -> None:
    target = "drmas_pl.GymnasiumTextEnv"
    inner = ["env.env._target_=gymnasium.make", "env.env.id=FrozenLake-v1"]
    words = [f"env._target_={target}", *inner, "env.episodes=3", "env.max_turns=2"]
    assert main([*ALONE, *words]) == 0
    assert json.loads((folder / "run" / "summary.json").read_text())["iterations"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["gymnasium.make"],
            "env: make rejects its settings: make() missing 1 required positional argument: 'id'",
        ),
        (
            ["gymnasium.make", "env.id=Nope-v1"],
            "env: make failed with NameNotFound: Environment `Nope` doesn't exist",
        ),
        (
            ["gymnasium.make", "env.id=Pendulum-v1"],
            "actions of PendulumEnv are Box(",
        ),
        (
            ["collections.OrderedDict"],
            "env._target_=collections.OrderedDict must give a Gymnasium environment, got OrderedDict() (OrderedDict)",
        ),
        (["math.pi"], "env._target_='math.pi' must name a class or a function, got 3.14"),
    ],
)
def test_what_is_no_environment_for_text_is_refused_in_one_line(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, *more = words
    assert main([*ALONE, f"env._target_={target}", *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1 and not (folder / "run").exists()


def test_help_needs_no_heavy_import(tmp_path: Path) -> None:
    code = "import sys; from drmas_pl.tools import train, evaluate\n"
    code += "for tool in (train, evaluate): tool.main(['--help'])\nprint('torch' in sys.modules)"
    result = python(tmp_path, "-c", code)
    assert (
        result.returncode == 0
        and result.stdout.count("usage: drmas ") == 2
        and result.stdout.endswith("False\n")
    ), result.stderr


def test_settings_of_the_toy_reach_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[MultiAgentTrainer] = []

    def fit(self: MultiAgentTrainer, *args: Any, **more: Any) -> None:
        seen.append(self)
        raise TrainingStopped("seen")

    monkeypatch.setattr(MultiAgentTrainer, "fit", fit)
    words = [
        "trainer.keep_best=false",
        "trainer.checkpoint_every=7",
        "rollout.max_calls=9",
        "evaluation.greedy=false",
    ]
    assert run(*words, "logger=none") == 1
    (trainer,) = seen
    assert (
        trainer.keep_best,
        trainer.checkpoint_every,
        trainer.rollout.max_calls,
        trainer.evaluation.greedy,
    ) == (False, 7, 9, False)


def test_a_run_that_cannot_learn_says_so_in_line_and_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model that ships for searching teams has never seen a boxed answer."""
    words = ["+env=search", "+agents=loop", "trainer.max_iterations=1", "rollout.samples=2", "logger=none"]
    few = ["data.tasks_per_iteration=2", "data.limit_validation=2", "evaluation.greedy=false"]
    # which would refuse this pair of team and environment
    few.append("trainer.env_check=false")
    assert main([*words, *few, "output_dir=run"]) == 0
    printed = capsys.readouterr()
    cause = "every utterance is invalid: solver (4 of 4: no \\boxed{})"
    setting = "raise agents.roles.solver.sampling.max_new_tokens"
    assert cause in printed.err and setting in printed.err
    assert "| every utterance invalid\n" in printed.err
    assert f"cannot learn: {cause}" in printed.out and setting in printed.out


def test_a_guard_rail_names_the_command_that_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = ["rollout.samples=1", "rollout.max_idle_iterations=1", "output_dir=run", "logger=none"]
    assert run(*alone) == 1
    said = capsys.readouterr().err
    assert "error: no learning signal for 1 iterations: " in said
    assert said.endswith("go on from iteration 1: python tools/train.py resume=run\n")
    assert (folder / "run" / "checkpoints" / "iteration-000001").is_dir()
