"""What a shell completes, asked of a real one."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from drmas_pl.tools.completion import main, script

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def completed(line: str, *, function: str = "_drmas") -> list[str]:
    """Return what bash would offer at the end of a line."""
    words = line.split(" ")
    # as bash splits them: at equals signs too
    split = (
        [part for word in words for part in word.replace("=", " = ").strip().split(" ")]
        if "=" in line
        else words
    )
    listed = " ".join(f"'{word}'" for word in split)
    program = (
        f"{script()}\nCOMP_LINE='{line}'; COMP_POINT={len(line)}; COMP_WORDS=({listed}); COMP_CWORD={len(split) - 1}\n"
        f'{function}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert not result.stderr
    return result.stdout.split()


def test_programs_are_completed() -> None:
    assert completed("drmas tr") == ["train"]
    assert {"train", "evaluate", "report", "completion"} <= set(completed("drmas "))


def test_groups_files_and_settings_are_completed() -> None:
    assert completed("drmas train +en") == ["+env="]
    assert completed("drmas train trainer.max_it") == ["trainer.max_iterations="]
    # what stands before the equals sign is there already
    assert completed("drmas train +env=search advantage=dr_m") == ["dr_mas", "dr_mas_mean", "dr_mas_std"]
    assert completed("drmas-train advantage=agent", function="_drmas_settings") == ["agentrl"]
    assert completed("drmas report +en") == []


def test_the_program_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0 and capsys.readouterr().out == script()
    assert main(["zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload -U bashcompinit")
    with pytest.raises(SystemExit):
        main(["fish"])
