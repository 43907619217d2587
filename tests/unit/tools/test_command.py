"""One command for every program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drmas_pl.tools import report
from drmas_pl.tools.command import PROGRAMS, main

ROOT = Path(__file__).parents[3]


def test_the_first_word_names_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(report, "main", lambda words: (seen.append(words), 7)[1])
    assert main(["report", "a", "--plot", "b"]) == 7
    assert seen == [["a", "--plot", "b"]]


def test_programs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main(["--help"]), main([]), main(["help"])) == (0, 2, 0)
    out = capsys.readouterr().out
    assert all(out.count(f"\n  {name} ") == 3 for name in PROGRAMS)
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("drmas_pl 0.")


def test_a_misspelt_program_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "seed=1"]) == 2
    assert "no program 'trian'; did you mean 'train'? choose from: train, evaluate" in capsys.readouterr().err


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_help_under_its_own_name_without_torch(name: str) -> None:
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['drmas', {name!r}, '--help']\n"
        "try:\n    runpy.run_module('drmas_pl', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert result.stdout.startswith(f"usage: drmas {name}") and result.stdout.endswith("False\n"), (
        result.stderr
    )


def test_every_program_is_documented_and_has_a_script_of_its_own() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    scripts = (ROOT / "setup.cfg").read_text()
    for name, (module, _) in PROGRAMS.items():
        assert f"| `drmas {name}` |" in page, name
        assert f"drmas-{name} = drmas_pl.tools.{module}:main" in scripts, name
