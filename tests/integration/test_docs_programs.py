"""The code of docs/programs.md runs as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "writing.py").write_text(BLOCKS[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "writing", raising=False)
    exec(compile(BLOCKS[1], str(PAGE), "exec"), {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == ["poet", "critic", "editor"]
    assert float(lines[1][1]) in (0.0, 0.1)


@pytest.mark.adapters
def test_the_program_with_a_client_trains(tmp_path: Path) -> None:
    import drmas_pl

    space: dict[str, object] = {}
    exec(compile(BLOCKS[2], str(PAGE), "exec"), space)
    tasks = [drmas_pl.Task(f"n{n}", f"Write the number {n}.", (str(n),)) for n in range(4)]
    result = drmas_pl.train(
        space["run_with_client"],  # type: ignore[arg-type]
        tasks,
        agents=["poet"],
        model="random:llama-tiny",
        iterations=1,
        samples=2,
        sampling={"max_new_tokens": 4},
        output_dir=tmp_path / "run",
        record=("train",),
    )
    played = result.trajectories("train")
    assert len(played) == 6 and all(len(trajectory.turns) == 2 for trajectory in played)
