"""Which conversations loggers are given, and as what: text that is no markup, and tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drmas_pl.trainer.conversation_log import (
    CHARACTERS,
    COLUMNS,
    as_markdown,
    as_row,
    choose_conversations,
    log_conversations,
)
from drmas_pl.trainer.tensorboard import GroupedTensorBoardLogger
from drmas_pl.types import Trajectory
from tests.helpers.progress import conversation


def played(count: int, samples: int = 2) -> list[Trajectory]:
    first = conversation()
    return [
        replace(first, task=replace(first.task, id=f"t{number}"), sample=sample)
        for number in range(count)
        for sample in range(samples)
    ]


def test_the_same_few_tasks_are_shown_whatever_their_order() -> None:
    chosen = [one.task.id for one in choose_conversations(played(40))]
    assert len(chosen) == len(set(chosen)) == 6 and chosen != sorted(chosen, key=lambda name: int(name[1:]))
    assert [one.task.id for one in choose_conversations(list(reversed(played(40))))] == chosen
    assert {one.sample for one in choose_conversations(played(40))} == {0}
    assert len(choose_conversations(played(2))) == 2


def test_what_was_said_is_no_markup() -> None:
    text = as_markdown(conversation("```\n# title <script>alert(1)</script>\n\n<b>"))
    said = text[text.index("**answer**") :].split("\n\n", 1)[1].rsplit("\n\n", 1)[0]
    assert all(line.startswith("    ") for line in said.splitlines())
    assert text.startswith("    What is the capital of France?") and text.endswith("solved, reward 1")
    assert "**search**" in text and "environment\n\n    Paris is the capital" in text


def test_long_utterances_are_cut() -> None:
    row = as_row(conversation("x" * (CHARACTERS + 1)), 3)
    assert dict(zip(COLUMNS, row, strict=True))["conversation"].endswith("x…")
    assert row[0] == 3 and row[4:] == ["solved", True, 1.0]


def test_tensorboard_has_a_text_for_each_task(tmp_path: Path) -> None:
    logger = GroupedTensorBoardLogger(tmp_path, "tensorboard", "")
    for step in (0, 5):
        log_conversations([logger], played(1), step=step)
    logger.finalize("success")
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    events = read.Tensors("conversations/t0/text_summary")
    assert [event.step for event in events] == [0, 5]
    assert b"**search**" in events[0].tensor_proto.string_val[0]


def test_tables_where_a_logger_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[Any] = []

    class Wandb(WandbLogger):
        def __init__(self) -> None:
            pass

        def log_table(self, key: str, columns: Any = None, data: Any = None, **options: Any) -> None:
            tables.append((key, columns, data, options["step"]))

    class Client:
        def log_table(self, run_id: str, data: Any, artifact_file: str) -> None:
            tables.append((run_id, json.loads(json.dumps(data)), artifact_file))

    class MLFlow(MLFlowLogger):
        experiment = Client()  # type: ignore[assignment]
        run_id = "one"  # type: ignore[assignment]

        def __init__(self) -> None:
            pass

    log_conversations([Wandb(), MLFlow()], played(2), step=4)
    assert tables[0][:2] == ("conversations", list(COLUMNS)) and len(tables[0][2]) == 2 and tables[0][3] == 4
    assert tables[1][0] == "one" and tables[1][2] == "conversations.json"
    assert tables[1][1]["iteration"] == [4, 4] and sorted(tables[1][1]["task"]) == ["t0", "t1"]


def test_a_logger_that_fails_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(WandbLogger):
        def __init__(self) -> None:
            pass

        def log_table(self, *args: Any, **options: Any) -> None:
            raise OSError("no connection")

    log_conversations([Broken(), CSVLogger(tmp_path)], played(1), step=0)
    assert caplog.messages == ["Broken took no conversations: no connection"]
