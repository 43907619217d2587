"""Faults of user code are reported with the line, the method and the agent, also through library frames."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from drmas_pl.env import StepResult, TextEnv
from drmas_pl.errors import EnvironmentFault
from drmas_pl.parsing import ActionGrammar
from drmas_pl.rollout.causes import FailureLog, describe_cause, fault_line
from drmas_pl.types import Task

SOURCE = """
import json

def read(text):
    return json.loads(text)

class Maze:
    def act(self, action):
        return read(action)
"""


@pytest.fixture
def maze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class from a file of a user's in the working directory."""
    path = tmp_path / "their_maze.py"
    path.write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    module = ModuleType("their_maze")
    exec(compile(SOURCE, str(path), "exec"), vars(module))
    return module.Maze()


def raised(call: Callable[[], Any]) -> BaseException:
    """Return what a call raises, without the frames of this file that a run has not."""
    try:
        call()
    except BaseException as error:
        rest = error.__traceback__
        while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
            rest = rest.tb_next
        return error.with_traceback(rest)
    raise AssertionError("nothing was raised")


def test_line_is_the_innermost_of_user_code_and_method_the_one_that_was_called(maze: Any) -> None:
    cause = describe_cause(raised(lambda: maze.act("{")), agent="solver")
    assert cause.startswith("JSONDecodeError: Expecting property name")
    assert cause.endswith("(their_maze.py:5, Maze.act, agent 'solver')")
    assert fault_line(raised(lambda: maze.act("{"))) == "their_maze.py:5"


def test_frames_of_the_library_around_user_code_are_passed_over(maze: Any) -> None:
    class Env(TextEnv):
        def begin(self, task: Task) -> str:
            return task.question

        def act(self, action: str) -> StepResult:
            return maze.act(action)

    env = Env([Task("a", "q")])
    env.reset(options={"task": env.tasks[0]})
    assert describe_cause(raised(lambda: env.step("{"))).endswith("(their_maze.py:5, Env.act)")


def test_a_fault_inside_the_library_names_its_own_line() -> None:
    error = raised(lambda: ActionGrammar("a").parse(3))  # type: ignore[arg-type]
    assert re.search(r"grammar\.py:\d+|boxed\.py:\d+", describe_cause(error))


def test_what_the_library_raises_on_purpose_needs_no_line() -> None:
    assert describe_cause(EnvironmentFault("down"), agent="a") == "EnvironmentFault: down (agent 'a')"
    assert describe_cause(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_an_error_of_syntax_is_where_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_broken.py").write_text("x = 1\ndef act(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert fault_line(raised(lambda: __import__("their_broken"))) == "their_broken.py:2"
    assert "their_broken" not in sys.modules


def test_a_kind_of_fault_has_one_traceback_in_the_log(tmp_path: Path) -> None:
    log = FailureLog(tmp_path / "new" / "failures.log")
    for text in ("{", "[", ""):
        log.write("train 3", "bad", raised(lambda text=text: json.loads(text)))
    log.write("train 3", "worse", raised(lambda: json.loads(3)))  # type: ignore[arg-type]
    written = (tmp_path / "new" / "failures.log").read_text()
    assert written.count("train 3: bad") == 3 and written.count("Traceback") == 2


def test_a_log_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    log = FailureLog(tmp_path / "file" / "failures.log")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            log.write("train 0", "bad", ValueError())
    assert caplog.text.count("failures.log cannot be written") == 1
