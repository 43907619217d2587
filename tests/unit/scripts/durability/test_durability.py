"""The program that tortures runs notices what it is there to notice, and finds nothing in a few cases of each kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import torture
from scripts.durability import damages, disks, faults
from scripts.durability.compare import leftovers
from scripts.durability.file_operations import at_operation, count_operations
from scripts.durability.kills import continuation
from scripts.durability.process import run
from scripts.durability.table import Record, Trial, Verdict, spread, table, trials

ROOT = Path(__file__).parents[4]
PIECES = """
from drmas_pl.trainer import run_directory
from pathlib import Path
from scripts import torture
from scripts.durability import damages, kills
from scripts.durability.table import scratch, table
torture._import_everything()
# drawing takes longer than everything else
run_directory.plot_run = lambda records, path, **how: path.write_bytes(b"")
with scratch() as place:
    found = [trial.judge() for trial in (*kills.kill("shared", {"-9": 1, "TERM": 1}, place), *damages.damage(place, 12))]
print(table(found))
assert len(found) == 14 and not any(verdict.faults for verdict in found)
"""


def write_files(folder: Path) -> int:
    """Do four file operations."""
    folder.mkdir()
    (folder / "a").write_text("1")
    os.rename(folder / "a", folder / "b")
    (folder / "b").unlink()
    return 0


def test_exit_codes_output_and_signals_are_told() -> None:
    def speak() -> int:
        print("hello")
        return 3

    assert run(speak).code == 3 and run(speak).text == "hello\n"
    assert run(lambda: os.kill(os.getpid(), signal.SIGKILL) or 0).code == -9
    outcome = run(lambda: sys.exit(2))
    assert outcome.code == 2 and outcome.faults == ["no message"]


def test_tracebacks_hanging_processes_and_orphans_are_faults() -> None:
    def fork() -> int:
        if os.fork() == 0:
            time.sleep(60)
        return 0

    outcome = run(lambda: 1 // 0)
    assert outcome.code == 70 and outcome.faults == ["traceback"]
    assert run(lambda: time.sleep(60) or 0, limit=0.2).faults == ["hung"]
    assert run(fork, orphan_seconds=0.2).faults == ["orphan"]


def test_a_stopped_process_is_woken_up() -> None:
    outcome = run(lambda: os.kill(os.getpid(), signal.SIGSTOP) or 5)
    assert outcome.code == 5 and outcome.seconds >= 0.1


def test_something_happens_at_exactly_one_file_operation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record = tmp_path / "operations"
    assert run(lambda: write_files(folder), prepare=count_operations(folder, record)).code == 0
    assert [line.split()[0] for line in record.read_text().splitlines()] == ["open", "os.rename", "os.remove"]
    for number, left in ((1, []), (2, ["a"]), (3, ["b"])):
        target = tmp_path / str(number)
        prepare = at_operation(target, number, lambda: os._exit(9))
        assert run(lambda target=target: write_files(target), prepare=prepare).code == 9  # type: ignore[misc]
        assert [path.name for path in target.iterdir()] == left


def test_what_runs_leave_behind_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".writing-iteration-000001").mkdir(parents=True)
    (tmp_path / "run.lock").touch()
    (tmp_path / "notes").touch()
    assert leftovers(tmp_path) == ["leftover checkpoints/.writing-iteration-000001", "leftover run.lock"]


def test_a_run_without_configuration_is_started_again(tmp_path: Path) -> None:
    assert continuation(tmp_path, ["a=1"]) == ["a=1"]
    (tmp_path / "config.yaml").touch()
    assert continuation(tmp_path, ["a=1"]) == [f"resume={tmp_path}", "trust=true"]


def test_cases_are_counted_and_those_that_failed_are_shown(tmp_path: Path) -> None:
    verdicts = [
        trial.judge() for trial in trials("kills", ["a", "b"], lambda case, folder: ["lost"] * (case == "b"))
    ]
    assert verdicts == [Verdict("kills", "a"), Verdict("kills", "b", ("lost",))]
    assert table(verdicts).splitlines()[2].split() == ["kills", "2", "1", "1"]
    assert table(verdicts).endswith("kills, b: lost")
    assert spread(1, 9) == [5] and spread(4, 100)[0] == 1 and spread(4, 100)[-1] == 100


def test_there_are_as_many_cases_as_promised(tmp_path: Path) -> None:
    checkpoint = tmp_path / damages.Base(tmp_path, tmp_path).checkpoint
    for name in (
        "manifest.json",
        "callbacks.pt",
        "groups/shared/optimizer.pt",
        "groups/shared/model.safetensors",
    ):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).touch()
    assert len(damages.cases(damages.Base(tmp_path, tmp_path))) >= 130, (
        "and more with every file of a checkpoint"
    )
    assert len(disks.cases()) >= 40 and len(faults.cases()) >= 60


def test_two_kills_and_a_dozen_damages_lose_and_run_nothing() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PIECES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_the_short_form_passes() -> None:
    words = [sys.executable, "-m", "scripts.torture", "--short"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "damaged and malicious folders" in found.stdout


@pytest.mark.slow
@pytest.mark.ray
def test_runs_on_ray_survive_kills() -> None:
    words = [sys.executable, "-m", "scripts.torture", "--parts", "ray"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_parts_are_chosen() -> None:
    parse = torture._parser().parse_args
    assert list(parse([]).parts) == ["kills", "disks", "damages", "faults"]
    assert parse(["--parts", "soak", "--minutes", "5"]).minutes == 5


def test_a_long_program_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    wrong = ["b"]

    def attempt(case: str, folder: Path) -> list[str]:
        tried.append(case)
        return ["lost"] if case in wrong else []

    monkeypatch.setattr(torture, "_trials", lambda arguments, place: trials("kills", "abc", attempt))
    monkeypatch.setattr(torture, "_import_everything", lambda: None)
    words = ["--record", str(tmp_path / "record.jsonl")]
    assert torture.main([*words, "--stop-after", "-1"]) == 75 and tried == []
    assert torture.main(words) == 1 and tried == ["a", "b", "c"]
    wrong.clear()
    assert torture.main(words) == 0 and tried[3:] == ["b"], "what passed is not tried again"
    record = Record(tmp_path / "record.jsonl")
    assert [verdict.case for verdict in record.verdicts] == ["a", "b", "c"]
    assert record.has_passed(Trial("kills", "b", lambda folder: ())), "the last verdict counts"
