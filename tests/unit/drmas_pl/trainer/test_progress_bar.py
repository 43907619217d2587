"""What the callback notes of a run, phase by phase."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import RichProgressBar

from drmas_pl.trainer import progress_bar
from drmas_pl.trainer.diagnosis import Finding
from drmas_pl.trainer.progress import RunProgress
from drmas_pl.trainer.progress_bar import ProgressBar, title_of
from tests.helpers.progress import conversation
from tests.helpers.runs import run
from tests.helpers.toy import make_trainer


class Recorder:
    """Stands for a display, and notes the phases."""

    def __init__(self, progress: RunProgress) -> None:
        self.progress = progress
        self.seen: list[str] = []

    def open(self) -> None:
        self.seen.append("open")

    def refresh(self) -> None:
        self.seen.append(self.progress.phase)

    def show_iteration(self) -> None:
        self.seen.append(f"iteration {self.progress.iteration}")

    def show_validation(self) -> None:
        self.seen.append(f"validated {len(self.progress.evaluations)}")

    def close(self) -> None:
        self.seen.append("close")


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    made: list[Recorder] = []

    def choose(progress: RunProgress, **options: Any) -> Recorder:
        made.append(Recorder(progress))
        return made[-1]

    monkeypatch.setattr(progress_bar, "choose_display", choose)
    return made


def test_a_run_is_shown_phase_by_phase(tmp_path: Path, recorders: list[Recorder]) -> None:
    run(tmp_path, max_iterations=1)
    (recorder,) = recorders
    assert recorder.seen == [
        "open",
        "validation",
        "validated 1",
        "play",
        "grade",
        "update",
        "update writer, 1 of 2",
        "update editor, 2 of 2",
        "iteration 1",
        "validation",
        "validated 2",
        "save",
        "done",
        "close",
    ]
    progress = recorder.progress
    assert progress.total == 1 and progress.iteration == 1 and progress.validated_at == 1
    assert progress.tokens_per_second and progress.tokens_per_second > 0
    assert progress.conversation is not None and progress.conversation()
    assert "train/reward" in progress.metrics and progress.title.endswith("seed 0  cpu")


def test_a_resumed_run_begins_where_it_was(tmp_path: Path, recorders: list[Recorder]) -> None:
    run(tmp_path, max_iterations=1)
    run(tmp_path, resume=tmp_path, max_iterations=2)
    assert recorders[-1].progress.first == 1
    assert [one["iteration"] for one in recorders[-1].progress.evaluations] == [0, 1, 2]


def test_the_display_is_closed_when_a_run_breaks(tmp_path: Path, recorders: list[Recorder]) -> None:
    class Broken(ProgressBar):
        def on_rollout_end(self, *args: Any) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        run(tmp_path, callbacks=[Broken()])
    assert recorders[-1].seen[-1] == "close"


def test_causes_are_shown(recorders: list[Recorder]) -> None:
    bar = ProgressBar()
    bar._progress = RunProgress("", "", ("a",), 2, 0, 0.0)
    bar._display = Recorder(bar._progress)
    state = SimpleNamespace(diagnoses=[Finding("", cause="all rewards equal")])
    trainer: Any = SimpleNamespace(iteration=1, state=state)
    bar.on_train_batch_end(trainer, None, {"train/reward": 0.5}, (), 0)
    assert bar._progress.causes == ["all rewards equal"] and bar._progress.metrics == {"train/reward": 0.5}


@pytest.mark.parametrize(("staleness", "rate"), [(0, 4 / 1.0), (1, 4 / 9.0)])
def test_tokens_per_second_count_since_sampling_began(
    monkeypatch: pytest.MonkeyPatch, staleness: int, rate: float
) -> None:
    """Ahead, the second rollout has been sampled since the end of the first."""
    times = iter([0.0, 0.0, 1.0, 1.0, 9.0, 9.0, 10.0, 10.0])
    monkeypatch.setattr(progress_bar.time, "perf_counter", lambda: next(times))
    bar = ProgressBar()
    bar._progress = RunProgress("", "", ("a",), 2, 0, 0.0)
    bar._display = Recorder(bar._progress)
    trainer: Any = SimpleNamespace(rollout=SimpleNamespace(max_staleness=staleness))
    rollout: Any = SimpleNamespace(trajectories=[conversation()])
    for index in range(2):
        bar.on_rollout_start(trainer, None, (), index)
        bar.on_rollout_end(trainer, None, rollout, index)
    assert bar._progress.tokens_per_second == pytest.approx(rate)


def test_outside_of_a_fit_nothing_is_shown() -> None:
    bar = ProgressBar()
    trainer: Any = SimpleNamespace()
    bar.on_validation_start(trainer, None)
    bar.on_validation_end(trainer, None)
    bar.on_exception(trainer, None, RuntimeError())


def test_a_bar_is_there_unless_it_is_switched_off_or_another_one_is(tmp_path: Path) -> None:
    def bars(**options: Any) -> list[str]:
        return [type(item).__name__ for item in make_trainer(tmp_path, **options).callbacks]

    own = ProgressBar()
    assert bars() == ["ProgressBar"] and bars(enable_progress_bar=False) == []
    assert bars(callbacks=[RichProgressBar()]) == ["RichProgressBar"]
    assert make_trainer(tmp_path, callbacks=own).callbacks == [own]


def test_a_title_names_environment_and_team_where_they_are_known() -> None:
    trainer: Any = SimpleNamespace(
        hparams={"env": {"name": "search"}, "agents": {"name": "hierarchy"}},
        seed=3,
        fabric=SimpleNamespace(device="cpu"),
        team=conversation(),
    )
    assert title_of(trainer) == "search-hierarchy  seed 3  cpu"
    trainer.hparams = None
    assert title_of(trainer) == "Trajectory  seed 3  cpu"
