"""Errors become one line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from drmas_pl.errors import CheckpointError, ConfigError, DataError, TrainingStopped
from drmas_pl.tools.program import configure_logging, guarded, kept_environment, run_program


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong"), 2),
        (DataError("wrong"), 1),
        (CheckpointError("wrong"), 1),
        (TrainingStopped("wrong"), 1),
        (PermissionError("wrong"), 1),
    ],
)
def test_known_errors_are_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def action() -> int:
        raise error

    assert guarded(action) == code
    assert capsys.readouterr().err == "error: wrong\n"
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(type(error)):
        guarded(action)


def test_results_interrupts_and_bugs_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    def bug() -> int:
        raise ZeroDivisionError

    assert guarded(lambda: 7) == 7
    assert guarded(interrupt) == 130 and "stopped at once" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        guarded(bug)


def test_the_librarys_messages_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger("drmas_pl")
    before = (root.handlers, root.propagate, root.level)
    try:
        configure_logging()
        logging.getLogger("drmas_pl.anything").info("hello")
        assert capsys.readouterr().err == "hello\n"
    finally:
        root.handlers, root.propagate = before[:2]
        root.setLevel(before[2])


def test_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRMAS_KEPT", "before")
    monkeypatch.delenv("DRMAS_NEW", raising=False)
    with pytest.raises(ValueError, match="x"), kept_environment():
        os.environ.update(DRMAS_KEPT="after", DRMAS_NEW="1")
        raise ValueError("x")
    assert os.environ["DRMAS_KEPT"] == "before" and "DRMAS_NEW" not in os.environ


def test_modules_of_the_working_directory_are_found_while_a_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)

    def action(words: list[str]) -> int:
        return sys.path.index(str(tmp_path))

    assert run_program("", action, []) == 0 and sys.path == before
