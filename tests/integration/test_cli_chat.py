"""The chat program on the checkpoint of a real (tiny) run."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from drmas_pl.config.trust import environment_trust
from drmas_pl.tools.chat import main, split_words
from drmas_pl.tools.train import main as train
from tests.helpers.toy import TEAM_WORDS, EvenEnv, make_tasks

TOY = [
    "+env=custom",
    "env._target_=tests.integration.test_cli_chat.ChatEnv",
    *TEAM_WORDS,
    "model=tiny_random",
    "model.max_new_tokens=3",
]


class ChatEnv(EvenEnv):
    """The toy environment with tasks of its own."""

    def __init__(self) -> None:
        super().__init__(make_tasks(4, "near"))


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRMAS_TRUST", "tests")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    words = [*TOY, f"output_dir={path}", "trainer.max_iterations=1", "data.tasks_per_iteration=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRMAS_TRUST", "tests")
        assert train([*words, "rollout.samples=2", "logger=none", "evaluation.every=0"]) == 0
    return path


def test_a_question_is_played_and_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "Is [b]two[/b] even?"]) == 0
    out = capsys.readouterr().out
    assert "Is [b]two[/b] even?" in out and "● writer" in out and "\x1b" not in out


def test_questions_come_one_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("first one?\n\n  second one?  \n"))
    assert main([str(folder), "greedy=false", "seed=3", "max_calls=1"]) == 0
    out = capsys.readouterr().out
    assert out.count("● writer") == 2 and "editor" not in out
    assert out.index("first one?") < out.index("second one?")


def test_samples_depend_on_the_seed_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in (1, 1, 2):
        assert main([str(folder), "q", "greedy=false", f"seed={seed}"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_what_the_configuration_imports_must_be_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DRMAS_TRUST")
    assert not environment_trust().names
    assert main([str(folder), "q"]) == 2
    assert "trust" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a run folder"),
        (["a", "b", "c"], "got 3 words"),
        (["a", "--fast"], "--fast is no flag"),
        (["a", "max_calls=0x"], "max_calls must be a number"),
        (["a", "greedy=maybe"], "greedy must be true or false"),
        (["none-there", "q"], "none-there"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_question_may_hold_an_equals_sign() -> None:
    assert split_words(["run", "What is x if x = 2?", "seed=1"]) == ("run", "What is x if x = 2?", ["seed=1"])
