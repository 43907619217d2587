"""The program that shows runs: address, token, shutdown."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from drmas_pl.tools.view import build_parser, find_token, main
from tests.helpers.asking import request

ROOT = Path(__file__).parents[3]
pytest.importorskip("uvicorn", reason="needs the extra serve")


def test_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "tools/view.py", str(tmp_path), "--port", "0"]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/$", program.stdout.readline().strip())
        assert found
        assert "No run yet" in request("GET", found[0]).data.decode()
    finally:
        program.send_signal(signal.SIGTERM)
        _, err = program.communicate(timeout=300)
    assert (program.returncode, err) == (0, "")


def test_beyond_this_machine_there_is_always_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_parser().parse_args([]).host == "127.0.0.1"
    monkeypatch.delenv("DRMAS_VIEW_TOKEN", raising=False)
    assert find_token(True) is None and len(find_token(False) or "") >= 32
    monkeypatch.setenv("DRMAS_VIEW_TOKEN", "own")
    assert find_token(True) == find_token(False) == "own"


def test_a_taken_port_and_a_missing_folder_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([str(tmp_path), "--port", str(taken.getsockname()[1])]) == 1
    assert capsys.readouterr().err.startswith("error: cannot listen at 127.0.0.1")
    assert main([str(tmp_path / "none")]) == 2
    assert "no folder" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["uvicorn", "fastapi"])
def test_without_the_extra_one_line_says_so(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main([str(tmp_path), "--port", "0"]) == 2
    assert "pip install 'drmas_pl[serve]'" in capsys.readouterr().err
