"""The data module: what it reads, refuses, deals out and restores; with a real Lightning Trainer where it matters."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import drmas_pl.data
from drmas_pl.data import TaskDataModule, fingerprint, read_tasks
from drmas_pl.errors import DataError
from drmas_pl.types import Task

WEIGHTS = {"source0": 2, "source1": 1}


def make_tasks(name: str, count: int) -> tuple[Task, ...]:
    return tuple(
        Task(f"{name}{number}", f"{name} {number}?", ("1",), f"source{number % 2}") for number in range(count)
    )


def make_module(**changes: Any) -> TaskDataModule:
    settings = {
        "train": make_tasks("train", 10),
        "validation": make_tasks("validation", 5),
        "test": make_tasks("test", 6),
        "tasks_per_iteration": 4,
        "seed": 0,
    }
    return TaskDataModule(**{**settings, **changes})


class Watcher(lightning.LightningModule):
    """Remembers the batches it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: dict[str, list[list[str]]] = {"train": [], "validation": [], "test": []}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen["train"].append([task.id for task in batch])
        return self.weight * 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["validation"].append([task.id for task in batch])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["test"].append([task.id for task in batch])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_trainer(folder: Path, **settings: Any) -> lightning.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return lightning.Trainer(accelerator="cpu", default_root_dir=folder, **{**quiet, **settings})


def test_embedded_files_are_read() -> None:
    module = TaskDataModule(
        train="embedded:search/train",
        validation="embedded:search/validation",
        test="embedded:search/test",
        tasks_per_iteration=24,
        balance="data_source",
    )
    for iteration in (0, 1, 300):
        assert Counter(task.data_source for task in module.tasks_for(iteration)) == {
            "geo_one_hop": 12,
            "geo_two_hop": 12,
        }
    assert module.fingerprints["train"] == fingerprint(read_tasks("embedded:search/train"))
    assert module.iterations_per_epoch == 239


def test_every_epoch_plays_every_task_once_across_the_border() -> None:
    module = make_module()
    drawn = [task.id for iteration in range(5) for task in module.tasks_for(iteration)]
    everything = {task.id for task in module.tasks("train")}
    assert set(drawn[:12]) == everything
    assert Counter(drawn) == dict.fromkeys(everything, 2)
    assert len(set(drawn[8:12])) == 4


def test_seed_decides_the_order() -> None:
    assert make_module().tasks_for(1) == make_module().tasks_for(1)
    assert make_module(seed=1).tasks_for(1) != make_module().tasks_for(1)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_limits_keep_a_seeded_share_of_every_source(split: Any) -> None:
    module = make_module(**{f"limit_{split}": 4})
    assert len(module.tasks(split)) == 4
    assert Counter(task.data_source for task in module.tasks(split)) == {"source0": 2, "source1": 2}
    assert {task.id for task in module.tasks(split)} < {task.id for task in make_module().tasks(split)}
    assert module.fingerprints[split] != make_module().fingerprints[split]
    assert any(
        make_module(seed=seed, **{f"limit_{split}": 4}).tasks(split) != module.tasks(split)
        for seed in range(1, 5)
    )


def test_overlap_is_refused_unless_allowed() -> None:
    with pytest.raises(DataError, match="train and validation share 1 question"):
        make_module(validation=[make_tasks("train", 1)[0]]).setup()
    module = make_module(validation=[make_tasks("train", 1)[0]], allow_overlap=True)
    module.setup("fit")
    assert len(module.tasks("validation")) == 1


def test_splits_may_be_left_out() -> None:
    module = make_module(train=None, validation=None)
    assert module.tasks("validation") == ()
    assert list(module.val_dataloader()) == []
    assert list(module.fingerprints) == ["test"]
    with pytest.raises(
        DataError, match="there are no training tasks to draw from; give TaskDataModule a train file"
    ):
        module.tasks_for(0)
    with pytest.raises(
        DataError, match="validation must hold at least one task, got none; leave validation out"
    ):
        make_module(validation=[]).setup()


def test_too_few_training_tasks_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    module = make_module(train=make_tasks("train", 3))
    with caplog.at_level(logging.WARNING):
        assert len(module.tasks_for(0)) == 4
    assert "3 training tasks are fewer than the 4 of one iteration" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks_per_iteration": 0}, "tasks_per_iteration must be at least 1, got 0"),
        ({"limit_train": 0}, "limit_train must be at least 1 or None, got 0"),
        ({"limit_test": -1}, "limit_test must be at least 1 or None, got -1"),
        ({"balance": "sources"}, "balance must be 'none' or 'data_source', got 'sources'"),
        (
            {"balance": "data_source", "weights": {"a": 1}},
            "weights already decide what balance='data_source' would",
        ),
    ],
)
def test_settings_are_checked_at_construction(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_module(**settings)


def test_a_stock_trainer_plays_the_same_iterations(tmp_path: Path) -> None:
    module, watcher = make_module(), Watcher()
    trainer = make_trainer(tmp_path, max_epochs=3, enable_checkpointing=False)
    trainer.fit(watcher, datamodule=module)
    trainer.test(watcher, datamodule=module, verbose=False)
    assert watcher.seen["train"] == [
        [task.id for task in module.tasks_for(iteration)] for iteration in range(9)
    ]
    assert watcher.seen["validation"] == 3 * [[f"validation{n}" for n in range(4)], ["validation4"]]
    assert watcher.seen["test"] == [[f"test{n}" for n in range(4)], ["test4", "test5"]]


def test_a_checkpoint_at_the_end_of_an_epoch_resumes_with_the_next_one(tmp_path: Path) -> None:
    module, watcher = make_module(), Watcher()
    make_trainer(tmp_path, max_epochs=1, callbacks=[ModelCheckpoint(tmp_path, save_last=True)]).fit(
        watcher, datamodule=module
    )
    resumed = Watcher()
    make_trainer(tmp_path, max_epochs=2, enable_checkpointing=False).fit(
        resumed, datamodule=make_module(), ckpt_path=tmp_path / "last.ckpt"
    )
    assert resumed.seen["train"] == [
        [task.id for task in module.tasks_for(iteration)] for iteration in (3, 4, 5)
    ]


def test_resuming_with_changed_data_is_refused(tmp_path: Path) -> None:
    module = make_module()
    make_trainer(tmp_path, max_epochs=1, callbacks=[ModelCheckpoint(tmp_path, save_last=True)]).fit(
        Watcher(), datamodule=module
    )
    changed = make_module(train=make_tasks("train", 11))
    trainer = make_trainer(tmp_path, max_epochs=2, enable_checkpointing=False)
    with pytest.raises(
        DataError,
        match=r"the data differs from the checkpoint's \(fingerprints: .* then, .* now\); restore the files",
    ):
        trainer.fit(Watcher(), datamodule=changed, ckpt_path=tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"tasks_per_iteration": 3},
        {"balance": "data_source"},
        {"limit_test": 2},
        {"weights": WEIGHTS},
    ],
)
def test_everything_that_decides_the_order_is_compared(
    change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    state = json.loads(json.dumps(make_module().state_dict()))
    make_module().load_state_dict(state)
    with pytest.raises(DataError, match="set allow_changed_data=True to go on with the new ones"):
        make_module(**change).load_state_dict(state)
    with caplog.at_level(logging.WARNING):
        make_module(allow_changed_data=True, **change).load_state_dict(state)
    assert "as allow_changed_data permits" in caplog.text


def test_the_package_offers_its_names_lazily() -> None:
    assert all(getattr(drmas_pl.data, name) is not None for name in drmas_pl.data.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        drmas_pl.data.nothing  # noqa: B018


def test_rows_with_named_columns_are_tasks() -> None:
    rows = [{"problem": f"{number} + 1?", "solution": number + 1, "level": 3} for number in range(4)]
    columns = {"question": "problem", "answer": "solution"}
    module = TaskDataModule(train=rows, columns=columns, tasks_per_iteration=2)
    first = module.tasks("train")[0]
    assert (first.question, first.reference, first.metadata) == ("0 + 1?", ("1",), {"level": 3})

    class Dataset:
        """What ``datasets.Dataset`` offers: a length, and rows by iterating."""

        def __len__(self) -> int:
            return len(rows)

        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter(rows)

    assert TaskDataModule(train=Dataset(), columns=columns, tasks_per_iteration=2).tasks(
        "train"
    ) == module.tasks("train")
    with pytest.raises(
        DataError,
        match=r"train, row 1: expected the column 'text', as the setting columns says, got the columns problem",
    ):
        TaskDataModule(train=rows, columns={"question": "text"}, tasks_per_iteration=2).setup()


def test_several_files_are_sources_that_weights_mix(tmp_path: Path) -> None:
    for name, count in (("easy", 6), ("hard", 6)):
        rows = [{"question": f"{name} {number}?", "answer": number} for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [str(tmp_path / "easy.jsonl"), tmp_path / "hard.jsonl"]
    module = TaskDataModule(train=files, tasks_per_iteration=4, weights={"easy": 3, "hard": 1})
    drawn = Counter(task.data_source for iteration in range(12) for task in module.tasks_for(iteration))
    assert drawn.total() == 48 and abs(drawn["hard"] - 12) <= 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            ["a.jsonl", Task("1", "?")],
            "train must hold tasks, rows with named columns, or files, got Task, str",
        ),
        ([7], "train must hold tasks, rows with named columns, or files, got int"),
        (
            {"train": []},
            r"train must be a file, a list of files, tasks or rows, got a dict; of several splits name one",
        ),
        (7, "train must be a file, a list of files, tasks or rows, got a int"),
        ([], "train must hold at least one task, got none"),
    ],
)
def test_other_sources_are_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TaskDataModule(train=source, tasks_per_iteration=2).setup()


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_two_tasks_of_a_split_that_share_an_id_are_refused(split: str) -> None:
    twins = (*make_tasks(split, 4), Task(f"{split}3", "another question?", ("1",)))
    with pytest.raises(DataError, match=f"{split}: tasks must have ids of their own, got '{split}3' 2 times"):
        make_module(**{split: twins}).setup()


def test_splits_may_number_their_tasks_alike() -> None:
    alike = [Task("0", f"{name}?", ("1",)) for name in ("train", "validation", "test")]
    make_module(train=alike[:1], validation=alike[1:2], test=alike[2:], tasks_per_iteration=1).setup()
