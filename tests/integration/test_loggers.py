"""What loggers have written at the end of a run: opened with the tools that people look at them with."""

from __future__ import annotations

import csv
import json
import logging
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drmas_pl.errors import ConfigError, TrainingStopped
from drmas_pl.tools.train import main
from drmas_pl.trainer.logging import SCORE
from drmas_pl.trainer.settings import EvaluationSettings
from tests.helpers.runs import StopAt, run
from tests.helpers.toy import TEAM_WORDS

ROOT = Path(__file__).parents[2]
HPARAMS = {"seed": 0, "rollout": {"samples": 4, "align_turns": {}}, "data": {"train": None, "names": ["a"]}}
WORDS = [
    "+env=custom",
    "env._target_=tests.integration.test_cli_train.ToyEnv",
    *TEAM_WORDS,
    "model=tiny_random",
    "model.max_new_tokens=3",
    "trainer.max_iterations=2",
    "rollout.samples=2",
    "data.tasks_per_iteration=2",
    "output_dir=run",
]


def files(folder: Path) -> list[Any]:
    """Loggers that continue their files when they are made again for the same folder."""
    return [TensorBoardLogger(folder, "tensorboard", ""), CSVLogger(folder, "csv", "")]


def tensorboard(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    return accumulator.Reload()


def rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of the CSV file as metrics of the run."""
    with (folder / "csv" / "metrics.csv").open() as file:
        return [
            {"iteration" if name == "step" else name: float(value) for name, value in row.items() if value}
            for row in csv.DictReader(file)
        ]


def test_tensorboard_and_csv_hold_every_metric_and_the_settings(tmp_path: Path) -> None:
    trainer = run(tmp_path, max_iterations=2, logger=files(tmp_path / "logs"), hparams=HPARAMS)
    records = trainer.folder.read_metrics()
    assert rows(tmp_path / "logs") == [
        {key: pytest.approx(record[key]) for key in record} for record in records
    ]
    written = tensorboard(tmp_path / "logs")
    assert [event.step for event in written.Scalars("train/reward")] == [1, 2]
    assert [event.step for event in written.Scalars(SCORE)] == [0, 2]
    assert "hp_metric" not in written.Tags()["scalars"], "no made-up score"
    start = written.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert all(name in start for name in (b"rollout.samples", b"data.names", b"['a']"))
    for logger in ("tensorboard", "csv"):
        assert yaml.safe_load((tmp_path / "logs" / logger / "hparams.yaml").read_text()) == HPARAMS


@pytest.mark.parametrize(
    ("stop", "every"),
    [pytest.param(0, 0, marks=pytest.mark.slow), pytest.param(2, 0, marks=pytest.mark.slow), (3, 2)],
)
def test_a_resumed_run_repeats_no_step(tmp_path: Path, stop: int, every: int) -> None:
    """Also when it goes on from a checkpoint that is older than what was logged."""
    how: dict[str, Any] = {"evaluation": EvaluationSettings(greedy=False, every=1), "keep_best": False}
    run(
        tmp_path,
        callbacks=[StopAt(stop) if stop else _StopAtOnce()],
        logger=files(tmp_path / "logs"),
        checkpoint_every=every,
        **how,
    )
    start = tmp_path
    if every:
        # what a run leaves that is killed between two checkpoints
        (tmp_path / "checkpoints" / "last").write_text(f"iteration-{every:06d}")
        run(tmp_path / "other", callbacks=[StopAt(every)], **how)
        start = tmp_path / "other"
        start = start / "checkpoints" / f"iteration-{every:06d}"
    trainer = run(tmp_path, resume=start, logger=files(tmp_path / "logs"), hparams=HPARAMS, **how)
    written, records = tensorboard(tmp_path / "logs"), trainer.folder.read_metrics()
    for name in ("train/reward", "train/editor/calls", SCORE):
        expected = [record["iteration"] for record in records if name in record]
        # files that are begun within one second are read in any order
        assert sorted(event.step for event in written.Scalars(name)) == expected, name
        assert [row["iteration"] for row in rows(tmp_path / "logs") if name in row] == expected
    assert len(records) == 9


class _StopAtOnce(StopAt):
    def __init__(self) -> None:
        super().__init__(0)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = True


class Told(DummyLogger):
    """Notes how it is opened and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.told.append(params)

    def finalize(self, status: str) -> None:
        self.told.append(status)
        raise OSError("no connection")


def test_loggers_are_told_of_settings_and_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    with caplog.at_level(logging.WARNING, "drmas_pl"):
        run(tmp_path, max_iterations=1, logger=[told], hparams=HPARAMS)
    assert told.told == [HPARAMS, "success"]
    assert "Told could not be closed: no connection" in caplog.text


def test_a_logger_that_cannot_be_opened_ends_the_run_before_anything_is_played(tmp_path: Path) -> None:
    class Closed(Told):
        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("no key\nlog in first")

    with pytest.raises(ConfigError, match="Closed cannot be opened: no key log in first; set what it needs"):
        run(tmp_path, logger=[Closed()], hparams=HPARAMS)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("error", [TrainingStopped("enough"), KeyboardInterrupt()])
def test_loggers_are_told_of_a_failure(tmp_path: Path, error: BaseException) -> None:
    class Fail(StopAt):
        def on_train_batch_end(self, *args: Any) -> None:
            raise error

    told = Told()
    logs = tmp_path / "logs"
    with pytest.raises(type(error)):
        run(tmp_path, logger=[told, *files(logs)], callbacks=[Fail(1)])
    assert told.told == ["failed"]
    assert [row["iteration"] for row in rows(logs)] == [0, 1], "rows that wait are written"


def test_a_logger_is_added_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    more = "+logger.second._target_=lightning.pytorch.loggers.CSVLogger", "+logger.second.save_dir=second"
    assert main([*WORDS, *more]) == 0
    assert (tmp_path / "second" / "lightning_logs" / "version_0" / "metrics.csv").is_file()
    assert len(rows(tmp_path / "run" / "logs")) == 4
    hparams = yaml.safe_load((tmp_path / "run" / "logs" / "csv" / "hparams.yaml").read_text())
    assert hparams["rollout"]["samples"] == 2 and hparams["logger"]["second"]["save_dir"] == "second"


def test_a_logger_without_its_package_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert main([*WORDS, "logger=trackio"]) == 2
    assert "trackio is not installed; run: pip install 'drmas_pl[trackio]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.loggers
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wandb_mlflow_and_trackio_are_added_to_the_files(tmp_path: Path) -> None:
    """In a process of its own, since W&B and Trackio write their last lines when it ends."""
    paths = [str(ROOT), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != ".")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }
    words = [*WORDS, "logger=[wandb,mlflow,trackio]", "logger.wandb.offline=true", "--multirun", "seed=0,1"]
    command = [sys.executable, "-m", "drmas_pl.tools.train", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for seed in (0, 1):
        logs = tmp_path / "run" / str(seed) / "logs"
        assert len(rows(logs)) == 4 and tensorboard(logs).Scalars("rollout/reward")
        config, steps = _wandb_run(logs)
        assert config["seed"] == seed and steps == [0, 0, 1, 2, 2, 2]
        assert _mlflow_run(logs / "mlflow.db") == ("FINISHED", str(seed), [1, 2])
        assert _mlflow_metrics(logs / "mlflow.db") >= {"train/writer/calls", "train/editor/calls"}
        assert _mlflow_conversations(tmp_path, logs / "mlflow.db") == {0, 2}
        assert _wandb_tables(logs) >= 1
    with sqlite3.connect(tmp_path / "trackio" / "drmas_pl.db") as connection:
        configs = [json.loads(config) for (config,) in connection.execute("select config from configs")]
        steps = [step for (step,) in connection.execute("select step from metrics order by id")]
    # W&B has the conversations of both validations besides
    assert [config["seed"] for config in configs] == [0, 1] and steps == [0, 1, 2, 2] * 2


def _wandb_run(logs: Path) -> tuple[dict[str, Any], list[int]]:
    """Read configuration and steps out of an offline run's file."""
    from wandb.proto.wandb_internal_pb2 import Record

    config: dict[str, Any] = {}
    steps = []
    for data in _wandb_records(next(logs.glob("wandb/offline-run-*/*.wandb")).read_bytes()):
        record = Record()
        record.ParseFromString(data)
        for source in (record.run.config, record.config):
            config |= {item.key: json.loads(item.value_json) for item in source.update if item.key}
        for item in record.history.item:
            if "trainer/global_step" in (item.key, *item.nested_key):
                steps.append(int(json.loads(item.value_json)))
    return config, steps


def _wandb_records(data: bytes) -> Iterator[bytes]:
    """Split a file of W&B into its records: LevelDB's log format, blocks of 32 KiB after a header of seven bytes."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        # 1 is a whole record, 2, 3 and 4 are its first, middle and last part
        if kind in (1, 4):
            yield whole
            whole = b""


def _wandb_tables(logs: Path) -> int:
    """Count the tables of conversations that an offline run of W&B keeps."""
    tables = [json.loads(file.read_text()) for file in logs.glob("wandb/offline-run-*/files/**/*.table.json")]
    return sum("conversation" in table["columns"] and len(table["data"]) > 0 for table in tables)


def _mlflow_metrics(file: Path) -> set[str]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{file}")
    (found,) = client.search_runs([client.get_experiment_by_name("drmas_pl").experiment_id])
    return set(found.data.metrics)


def _mlflow_conversations(home: Path, file: Path) -> set[int]:
    """Return the iterations of the conversations that MLflow keeps, which name who said what."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{file}")
    (found,) = client.search_runs([client.get_experiment_by_name("drmas_pl").experiment_id])
    with pytest.MonkeyPatch.context() as patch:
        # where artifacts are may be said relative to where the run was started
        patch.chdir(home)
        place = client.download_artifacts(found.info.run_id, "conversations.json")
        record = json.loads(Path(place).read_text())
    assert all("writer:" in row[record["columns"].index("conversation")] for row in record["data"])
    return {row[record["columns"].index("iteration")] for row in record["data"]}


def _mlflow_run(file: Path) -> tuple[str, str, list[int]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{file}")
    experiment = client.get_experiment_by_name("drmas_pl")
    (found,) = client.search_runs([experiment.experiment_id])
    steps = [metric.step for metric in client.get_metric_history(found.info.run_id, "train/reward")]
    return found.info.status, found.data.params["seed"], steps
