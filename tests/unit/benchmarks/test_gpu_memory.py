"""The memory benchmark at toy size: groups that take turns leave the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu_memory import main


def test_groups_take_turns_on_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--size", "toy", "--accelerator", "cpu", "--out", str(tmp_path / "out.json")]) == 0
    first, second = json.loads((tmp_path / "out.json").read_text())
    assert first["asleep"] == second["asleep"] == first["after"] == 0
    # weights and two numbers of optimizer state each
    assert first["training"] == second["training"] > 3 * 4 * 512 * 256 and first["released_share"] == 1.0
    assert "released %" in capsys.readouterr().out
