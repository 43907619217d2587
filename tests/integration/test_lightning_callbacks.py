"""Every callback that Lightning ships: works in a real run, or is refused with the sentence in the documentation."""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch.callbacks as shipped
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import TrainerStatus

from drmas_pl.errors import CheckpointError, ConfigError
from drmas_pl.trainer.callbacks import REFUSED
from drmas_pl.trainer.settings import EvaluationSettings
from scripts.durability.damages import reseal
from tests.helpers.runs import StopAt, run
from tests.helpers.toy import make_trainer

PAGE = (Path(__file__).parents[2] / "docs" / "lightning.md").read_text()
TABLE = {
    name: (verdict, note)
    for name, verdict, note in re.findall(r"^\| `(\w+)` \| (works|refused) \| (.*?) ?\|$", PAGE, re.MULTILINE)
}
EVERY = EvaluationSettings(greedy=False, every=1)


class Predictions(shipped.BasePredictionWriter):
    def write_on_batch_end(self, *args: Any) -> None: ...


class Bar(shipped.ProgressBar):
    """Keeps what it would show."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Any] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.shown.append((index + 1, self.total_train_batches, self.get_metrics(trainer, pl_module)))


MAKERS: dict[str, Callable[[], Any]] = {
    "BackboneFinetuning": shipped.BackboneFinetuning,
    "BaseFinetuning": shipped.BaseFinetuning,
    "BasePredictionWriter": Predictions,
    "EarlyStopping": lambda: shipped.EarlyStopping("validation/success", mode="max"),
    "EMAWeightAveraging": lambda: shipped.EMAWeightAveraging(),
    "GradientAccumulationScheduler": lambda: shipped.GradientAccumulationScheduler({0: 2}),
    "ModelPruning": lambda: shipped.ModelPruning("l1_unstructured"),
    "OnExceptionCheckpoint": lambda: shipped.OnExceptionCheckpoint("."),
    "ProgressBar": Bar,
    "StochasticWeightAveraging": lambda: shipped.StochasticWeightAveraging(1e-2),
    "ThroughputMonitor": lambda: shipped.ThroughputMonitor(len),
    "Timer": lambda: shipped.Timer("00:01:00:00"),
}


def make(name: str) -> Any:
    return MAKERS.get(name, getattr(shipped, name))()


def test_the_table_has_every_callback_and_no_other() -> None:
    assert set(TABLE) == set(shipped.__all__)


@pytest.mark.parametrize("name", [name for name in TABLE if TABLE[name][0] == "refused"])
def test_what_cannot_work_is_refused_when_the_trainer_is_built(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(tmp_path, callbacks=[make(name)])
    said = str(caught.value)
    assert said.split(maxsplit=1)[1] == TABLE[name][1] and said.split(maxsplit=1)[1] in REFUSED.values()


# what ends a run, changes its weights or draws over what others draw cannot be in one run with the rest
TOGETHER = sorted(
    {name for name in TABLE if TABLE[name][0] == "works"}
    - {"EarlyStopping", "ProgressBar", "RichProgressBar"}
)


def test_what_works_works_together_for_a_whole_run_a_resumed_one_and_an_evaluation(tmp_path: Path) -> None:
    how: dict[str, Any] = {"evaluation": EVERY, "checkpoint_every": 1}
    logger = [CSVLogger(tmp_path / "logs", "csv", "")]
    run(tmp_path, max_iterations=1, callbacks=[make(name) for name in TOGETHER], logger=logger, **how)
    callbacks = [make(name) for name in TOGETHER]
    trainer = run(tmp_path, resume=tmp_path, max_iterations=2, callbacks=callbacks, logger=logger, **how)
    assert trainer.iteration == 2 and trainer.state.status == TrainerStatus.FINISHED
    trainer.validate(trainer.team, trainer.groups, trainer.data)
    assert trainer.state.fn == "validate"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TABLE if TABLE[name][0] == "works"])
def test_what_works_works_for_a_whole_run_a_resumed_one_and_an_evaluation(tmp_path: Path, name: str) -> None:
    def logger() -> list[Any]:
        return [CSVLogger(tmp_path / "logs", "csv", "")]

    how: dict[str, Any] = {"evaluation": EVERY, "checkpoint_every": 1}
    run(tmp_path, max_iterations=2, callbacks=[make(name)], logger=logger(), **how)
    trainer = run(tmp_path, resume=tmp_path, max_iterations=3, callbacks=[make(name)], logger=logger(), **how)
    assert trainer.iteration == 3 and trainer.state.status == TrainerStatus.FINISHED
    trainer.validate(trainer.team, trainer.groups, trainer.data)
    assert trainer.state.fn == "validate"


def recorded(tmp_path: Path, callback: Callback, **how: Any) -> list[dict[str, str]]:
    """Rows of a run's CSV file that do not come from the trainer itself."""
    run(tmp_path, callbacks=[callback], logger=[CSVLogger(tmp_path, "csv", "")], **how)
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]
    return [row for row in rows if "train/reward" not in row and "validation/reward" not in row]


def test_learning_rates_are_logged_with_the_iteration_they_belong_to(tmp_path: Path) -> None:
    rows = recorded(tmp_path, shipped.LearningRateMonitor(), max_iterations=2)
    assert [row["step"] for row in rows] == ["0", "1", "2"], "the first comes with the start of the epoch"
    assert set(rows[0]) == {"step", "lr-AdamW", "lr-AdamW-1"}, "one per group"


def test_device_statistics_are_logged_around_every_iteration(tmp_path: Path) -> None:
    rows = recorded(tmp_path, shipped.DeviceStatsMonitor(), max_iterations=2)
    train = [row["step"] for row in rows if any("on_train_batch" in name for name in row)]
    assert train == ["1", "1", "2", "2"]


def test_a_progress_bar_counts_iterations(tmp_path: Path) -> None:
    bar = Bar()
    trainer = run(tmp_path, max_iterations=2, callbacks=[bar])
    assert [(done, total) for done, total, _ in bar.shown] == [(1, 2), (2, 2)]
    last = [record for record in trainer.folder.read_metrics() if "train/reward" in record][-1]
    assert bar.shown[-1][2] == pytest.approx(
        {"reward": last["train/reward"], "success": last["train/success"]}
    )
    assert trainer.progress_bar_callback is bar


@pytest.mark.parametrize(
    "bar", [pytest.param(shipped.TQDMProgressBar, marks=pytest.mark.slow), shipped.RichProgressBar]
)
def test_drawn_progress_bars_show_where_the_run_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bar: Any
) -> None:
    run(tmp_path, max_iterations=2, callbacks=[bar()])
    out = capsys.readouterr()
    assert "2/2" in out.out + out.err and "reward" in out.out + out.err


def test_a_summary_counts_every_agent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lightning.pytorch.callbacks.model_summary"):
        run(tmp_path, max_iterations=1, callbacks=[shipped.ModelSummary(max_depth=2)])
    assert "agents.writer" in caplog.text and "Total params" in caplog.text


def test_a_timer_ends_a_run_also_when_its_time_was_spent_before(tmp_path: Path) -> None:
    spent = run(tmp_path, callbacks=[shipped.Timer({"seconds": 1e-6})])
    assert spent.iteration == 1
    again = run(tmp_path, resume=tmp_path, callbacks=[shipped.Timer({"seconds": 1e-6})])
    assert again.iteration == 1, "the checkpoint remembers"


@pytest.mark.parametrize("resumed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_early_stopping_counts_validations_without_progress(tmp_path: Path, resumed: bool) -> None:
    """Also over a resumed run: the first part has seen three of the four."""

    def patient() -> Any:
        return shipped.EarlyStopping("validation/success", min_delta=2.0, mode="max", patience=3)

    if resumed:
        run(tmp_path, max_iterations=9, callbacks=[patient(), StopAt(2)], evaluation=EVERY)
    trainer = run(
        tmp_path,
        resume=tmp_path if resumed else None,
        max_iterations=9,
        callbacks=[patient()],
        evaluation=EVERY,
    )
    assert trainer.iteration == 3 and (tmp_path / "checkpoints" / "iteration-000003").is_dir()


def test_what_early_stopping_monitors_must_be_a_metric(tmp_path: Path) -> None:
    stop = shipped.EarlyStopping("validation/sucess")
    with pytest.raises(
        ConfigError,
        match="EarlyStopping monitors 'validation/sucess', which no validation reports; set monitor to one of its "
        "metrics, such as validation/success",
    ):
        run(tmp_path, callbacks=[stop], evaluation=EVERY)


@pytest.mark.parametrize(
    ("callback", "how", "message"),
    [
        (
            shipped.LearningRateMonitor(),
            {},
            "LearningRateMonitor has nothing to log to; give the run a logger",
        ),
        (shipped.DeviceStatsMonitor(), {}, "DeviceStatsMonitor has nothing to log to"),
        (
            shipped.LearningRateMonitor("epoch"),
            {"logger": [CSVLogger(".")]},
            "would log once, since a run is one epoch; set logging_interval=step",
        ),
        (shipped.Timer("00:00:01:00", interval="epoch"), {}, "Timer would look at the clock once"),
        (shipped.EarlyStopping("x", check_on_train_epoch_end=True), {}, "EarlyStopping would look once"),
        (shipped.EarlyStopping("x"), {}, "EarlyStopping looks at validations, .* set evaluation.every"),
    ],
)
def test_what_cannot_work_as_it_is_set_is_refused(
    tmp_path: Path, callback: Any, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, callbacks=[callback], **how)


def test_a_dry_run_takes_callbacks_that_log(tmp_path: Path) -> None:
    callbacks = [shipped.LearningRateMonitor(), shipped.DeviceStatsMonitor()]
    run(tmp_path, fast_dev_run=True, callbacks=callbacks, logger=[CSVLogger(tmp_path)])
    assert not (tmp_path / "lightning_logs").exists()


def test_hooks_that_are_never_called_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "drmas_pl"):
        make_trainer(tmp_path, callbacks=[shipped.LambdaCallback(on_after_backward=lambda *args: None)])
    assert "on_after_backward of LambdaCallback will not be called" in caplog.text


class Counter(Callback):
    """Counts iterations over the parts of a run, and adds to its checkpoints."""

    def __init__(self) -> None:
        self.count, self.seen = torch.tensor(0), None

    def on_train_batch_start(self, *args: Any) -> None:
        self.count = self.count + 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = trainer.global_step

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.seen = checkpoint["mine"]


def test_callbacks_go_on_where_a_checkpoint_was(tmp_path: Path) -> None:
    run(tmp_path, callbacks=[Counter(), StopAt(2)])
    counter = Counter()
    run(tmp_path, resume=tmp_path, callbacks=[counter])
    assert counter.count == 4 and counter.seen == 2
    file = tmp_path / "checkpoints" / "iteration-000004" / "callbacks.pt"
    file.write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"is damaged: callbacks\.pt has 3 bytes"):
        run(tmp_path, resume=tmp_path, max_iterations=5, callbacks=[Counter()])
    reseal(file.parent)
    with pytest.raises(CheckpointError, match=r"callbacks\.pt cannot be read .*; choose another checkpoint"):
        run(tmp_path, resume=tmp_path, max_iterations=5, callbacks=[Counter()])
    file.unlink()
    reseal(file.parent)
    run(tmp_path, resume=tmp_path, max_iterations=5, callbacks=[Counter()])


def test_a_state_that_cannot_be_kept_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    class Odd(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {"path": Path("x")}

    with pytest.raises(
        ConfigError, match=r"the state of Odd cannot be kept in a checkpoint .* numbers, text"
    ):
        run(tmp_path, callbacks=[Odd()])
    assert not (tmp_path / "metrics.jsonl").exists()
    with pytest.raises(ConfigError, match="two callbacks are called 'Counter'"):
        run(tmp_path, callbacks=[Counter(), Counter()])
