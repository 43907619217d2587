"""Going on with a run from the command line: with its folder alone, and with other settings."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.callbacks import Callback
from safetensors.torch import load_file

from drmas_pl.tools.report import main as report
from drmas_pl.tools.train import main
from drmas_pl.utils.folder_lock import FolderLock
from tests.helpers.toy import TEAM_WORDS, EvenEnv, make_tasks

HERE = "tests.integration.test_cli_resume"
RUN = [
    "+env=custom",
    f"env._target_={HERE}.ToyEnv",
    *TEAM_WORDS,
    "model=tiny_random",
    "model.max_new_tokens=3",
    "rollout.samples=4",
    "data.tasks_per_iteration=2",
    "optimizer.lr=0.1",
    "trainer.max_iterations=3",
    "logger=none",
]


class ToyEnv(EvenEnv):
    """A toy environment with tasks of its own."""

    def __init__(self) -> None:
        super().__init__(make_tasks(4))


class Interrupt(Callback):
    """Sends a signal at the end of an iteration, ``times`` times; Ctrl-C unless it is another one."""

    def __init__(self, iteration: int, times: int = 1, number: int = signal.SIGINT) -> None:
        self.iteration, self.times, self.number = iteration, times, number

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        for _ in range(self.times if trainer.iteration == self.iteration else 0):
            signal.raise_signal(self.number)


class Crash(Callback):
    """Ends a run without saving it, once."""

    crashes = True

    def on_update_end(self, trainer: Any, *args: Any) -> None:
        if trainer.iteration == 1 and Crash.crashes:
            raise OSError("on purpose")


def interrupted(iteration: int, times: int = 1, number: int = signal.SIGINT) -> str:
    values = f"iteration: {iteration}, times: {times}, number: {int(number)}"
    return f"trainer.callbacks=[{{_target_: {HERE}.Interrupt, {values}}}]"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(run: Path) -> dict[str, Any]:
    """Return the weights of the last checkpoint as plain lists."""
    last = run / "checkpoints" / (run / "checkpoints/last").read_text()
    (file,) = last.glob("groups/*/model.safetensors")
    return {name: tensor.tolist() for name, tensor in load_file(file).items()}


def test_the_folder_of_a_run_is_enough_to_go_on_exactly(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "output_dir=whole"]) == 0
    name = "part of a run"
    assert main([*RUN, f"output_dir={name}", interrupted(2)]) == 130
    told = re.search(r"^go on with  python tools/train.py (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert told is not None and shlex.split(told[1]) == [f"resume={name}", "trust=true"]
    before = (folder / name / "config.yaml").read_text()
    assert main([f"resume={name}"]) == 2
    assert f"env._target_={HERE}.ToyEnv" in capsys.readouterr().err
    assert main(shlex.split(told[1])) == 0
    assert "other settings" not in capsys.readouterr().err
    assert weights(folder / name) == weights(folder / "whole")
    assert (folder / name / "config.yaml").read_text() == before
    assert {path.name for path in (folder / name).glob("config*")} == {"config.yaml"}


def test_other_settings_are_told_and_the_old_ones_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "output_dir=run"]) == 0
    old = (folder / "run/config.yaml").read_text()
    assert main(["resume=run", "trust=true", "trainer.max_iterations=4", "seed=1"]) == 2
    assert "the run has seed 0, not 1" in capsys.readouterr().err
    assert (folder / "run/config.yaml").read_text() == old
    assert main(["resume=run", "trust=true", "trainer.max_iterations=4", "optimizer.lr=0.5"]) == 0
    told = capsys.readouterr().err
    assert "from iteration 3 on with other settings than before:" in told
    assert "  optimizer.lr: 0.1 → 0.5\n" in told and "  trainer.max_iterations: 3 → 4\n" in told
    assert (folder / "run/config-until-iteration-000003.yaml").read_text() == old
    new = yaml.safe_load((folder / "run/config.yaml").read_text())
    assert (new["optimizer"]["lr"], new["trainer"]["max_iterations"]) == (0.5, 4)


def test_what_a_run_would_go_on_with_can_be_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "output_dir=run", "trainer.max_iterations=1"]) == 0
    capsys.readouterr()
    assert main(["--cfg", "job", "resume=run", "trust=true", "optimizer.lr=0.5"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["optimizer"]["lr"] == 0.5
    for flags, message in ((["-m"], "leave --multirun out"), (["--info", "all"], "--cfg job alone can")):
        assert main([*flags, "resume=run", "trust=true"]) == 2
        assert message in capsys.readouterr().err
    assert main(["resume=nowhere"]) == 1 and "no checkpoint in nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (1, "checkpoint: python tools/train.py resume=run trust=true"),
        pytest.param(0, "nothing was saved", marks=pytest.mark.slow),
    ],
)
def test_the_second_interrupt_says_what_is_left(
    saved: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "output_dir=run", interrupted(2, times=2), f"trainer.checkpoint_every={saved}"]) == 130
    assert (
        f"error: stopped at once; {'go on from the last ' if saved else ''}{message}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_terminated_run_ends_with_the_code_of_its_signal_and_the_command_to_go_on(
    number: signal.Signals, code: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    assert main([*RUN, "output_dir=run", "trainer.checkpoint_every=0", interrupted(1, 2, number)]) == code
    told = capsys.readouterr()
    assert f"{number.name}: stopping and saving after this iteration, or in 20 s" in told.err
    assert told.out.endswith("go on with  python tools/train.py resume=run trust=true\n")
    assert signal.getsignal(number) is before
    assert main(["resume=run", "trust=true"]) == 0
    assert [path.name for path in (folder / "run/checkpoints").glob("iteration-*")] == ["iteration-000003"]


@pytest.mark.usefixtures("curve")
def test_a_finished_run_is_gone_on_with_in_vain_and_without_harm(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "output_dir=run"]) == 0
    files = ("summary.json", "report.html", "checkpoints/iteration-000003/manifest.json")
    before = [(folder / "run" / name).read_bytes() for name in files]
    (folder / "run" / "plot.png").unlink()
    assert main(["resume=run", "trust=true"]) == 0
    assert (folder / "run" / "plot.png").exists()
    assert (folder / "run" / files[2]).read_bytes() == before[2]


def test_a_run_that_was_never_saved_starts_again_with_either_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Crash, "crashes", True)
    never_saved = [*RUN, "output_dir=run", f"trainer.callbacks=[{{_target_: {HERE}.Crash}}]"]
    for words in (never_saved, ["resume=run", "trust=true"], never_saved):
        assert main(words) == 1
        assert "on purpose" in capsys.readouterr().err
    monkeypatch.setattr(Crash, "crashes", False)
    assert main(["resume=run", "trust=true"]) == 0
    assert "run holds no checkpoint; the run starts again from the beginning" in capsys.readouterr().err
    assert main([*RUN, "output_dir=run"]) == 2
    assert "already holds a run; go on with resume=run" in capsys.readouterr().err


def test_a_folder_in_use_is_refused_with_host_and_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "output_dir=run", "trainer.max_iterations=1"]) == 0
    with FolderLock(folder / "run"):
        for words in ([*RUN, "output_dir=run"], ["resume=run", "trust=true"]):
            assert main(words) == 1
            assert re.search(
                rf"error: run is in use by process {os.getpid()} on \S+ since ", capsys.readouterr().err
            )
        assert report(["run", "--no-page"]) == 0
