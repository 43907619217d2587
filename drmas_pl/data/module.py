"""The tasks of a run as a LightningDataModule.

Place in the data flow: the trainer asks :meth:`TaskDataModule.tasks_for` for the tasks of an iteration, and reads the validation and test
tasks as they are. The dataloaders give a stock Lightning Trainer the same batches.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import lightning
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from drmas_pl.data.files import SourceRow
from drmas_pl.data.readers import read_tasks, tasks_from_rows
from drmas_pl.data.schedule import Balance, TaskSchedule
from drmas_pl.data.splits import check_disjoint, check_unique_ids, fingerprint, stratified_subset
from drmas_pl.errors import DataError
from drmas_pl.seeding import derive_seed
from drmas_pl.types import Task
from drmas_pl.utils.validation import check_arguments

Split = Literal["train", "validation", "test"]
File = str | os.PathLike[str]
Source = File | Sequence[File] | Iterable[Task | Mapping[str, Any]] | None

_LOGGER = logging.getLogger(__name__)
_STATE: Final = ("fingerprints", "seed", "tasks_per_iteration", "balance", "weights")


class TaskDataModule(lightning.LightningDataModule):
    """Reads the splits, proves them disjoint and deals out the training tasks.

    Args:
        train: What to train on: a file, a folder, a pattern or a list of these (see :func:`~drmas_pl.data.readers.read_tasks`); or tasks,
            or rows with named columns, such as a ``datasets.Dataset``. None when only evaluating.
        validation: Where model selection looks.
        test: Where the final number comes from.
        tasks_per_iteration: Training tasks per iteration, and batch size of the evaluation dataloaders.
        seed: Decides the order of training tasks and which tasks a limit keeps.
        balance: ``data_source`` draws the same number of training tasks per source in every iteration, as far as possible.
        weights: Share of every data source in the training tasks, in any unit, by its name; instead of ``balance``.
        columns: Names of columns that are called otherwise in the data, such as ``{"question": "problem"}``.
        limit_train: Keep so many training tasks, chosen by seed with every source's share kept.
        limit_validation: The same for validation.
        limit_test: The same for test.
        allow_overlap: Permit questions that stand in two splits.
        allow_changed_data: Permit resuming with other data, seed or batch size than the checkpoint was made with.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is below 1, ``balance`` is unknown, or weights are given beside it.
    """

    def __init__(
        self,
        *,
        train: Source = None,
        validation: Source = None,
        test: Source = None,
        tasks_per_iteration: int,
        seed: int = 0,
        balance: Balance = "none",
        weights: Mapping[str, float] | None = None,
        columns: Mapping[str, str] | None = None,
        limit_train: int | None = None,
        limit_validation: int | None = None,
        limit_test: int | None = None,
        allow_overlap: bool = False,
        allow_changed_data: bool = False,
    ) -> None:
        super().__init__()
        # what sources hold is looked at when they are read
        check_arguments(
            TaskDataModule.__init__,
            {name: value for name, value in locals().items() if name not in get_args(Split)},
        )
        self._sources: dict[Split, Source] = {"train": train, "validation": validation, "test": test}
        self._limits: dict[Split, int | None] = {
            "train": limit_train,
            "validation": limit_validation,
            "test": limit_test,
        }
        for name, limit in self._limits.items():
            if limit is not None and limit < 1:
                raise ValueError(f"limit_{name} must be at least 1 or None, got {limit}")
        if tasks_per_iteration < 1:
            raise ValueError(f"tasks_per_iteration must be at least 1, got {tasks_per_iteration}")
        if balance not in ("none", "data_source"):
            raise ValueError(f"balance must be 'none' or 'data_source', got {balance!r}")
        if weights and balance != "none":
            raise ValueError(f"weights already decide what balance={balance!r} would; leave one of them out")
        self.tasks_per_iteration = tasks_per_iteration
        self.seed = seed
        self.balance = balance
        self.weights = dict(weights or {})
        self.columns = dict(columns or {})
        self.allow_overlap = allow_overlap
        self.allow_changed_data = allow_changed_data
        self._tasks: dict[Split, tuple[Task, ...]] = {}
        self._schedule: TaskSchedule | None = None

    def setup(self, stage: str | None = None) -> None:
        """Read every split once, whatever the stage, since overlap can only be seen in all of them.

        Raises:
            DataError: A file is unusable, a given split is empty, two of its tasks share an id, or two splits share a question.
        """
        if self._tasks:
            return
        tasks = {name: read_source(source, name, self.columns) for name, source in self._sources.items()}
        for name, found in tasks.items():
            check_unique_ids(found, name)
        if not self.allow_overlap:
            check_disjoint(tasks["train"], tasks["validation"], test=tasks["test"])
        for name, limit in self._limits.items():
            if limit is not None:
                tasks[name] = stratified_subset(tasks[name], limit, seed=derive_seed(self.seed, name))
        if 0 < (count := len(tasks["train"])) < self.tasks_per_iteration:
            _LOGGER.warning(
                "%d training tasks are fewer than the %d of one iteration: some come twice",
                count,
                self.tasks_per_iteration,
            )
        if tasks["train"]:
            self._schedule = TaskSchedule(
                tasks["train"],
                self.tasks_per_iteration,
                seed=self.seed,
                balance=self.balance,
                weights=self.weights,
            )
        self._tasks = tasks

    def tasks(self, split: Split) -> tuple[Task, ...]:
        """Return all tasks of a split after its limit; empty where none was given."""
        self.setup()
        return self._tasks[split]

    def tasks_for(self, iteration: int) -> tuple[Task, ...]:
        """Return the training tasks of one iteration, a pure function of the seed and the iteration.

        Every epoch is a new permutation of all tasks, iterations continue across epochs, and no task comes twice in one iteration unless
        there are fewer than it needs.

        Args:
            iteration: Counted from 0.

        Raises:
            DataError: There are no training tasks.
            ValueError: ``iteration`` is negative.
        """
        return self._training_schedule().tasks_for(iteration)

    def replacements(
        self, dropped: Sequence[Task], played: Collection[str], *, iteration: int, draw: int
    ) -> tuple[Task, ...]:
        """Return other training tasks in place of some that an iteration cannot use.

        See :meth:`drmas_pl.data.schedule.TaskSchedule.replacements`.
        """
        return self._training_schedule().replacements(dropped, played, iteration=iteration, draw=draw)

    @property
    def iterations_per_epoch(self) -> int:
        """Iterations after which every training task was seen, without ``balance``; at least 1."""
        return max(1, -(-len(self.tasks("train")) // self.tasks_per_iteration))

    @property
    def fingerprints(self) -> dict[str, str]:
        """Content hash by split, after limits; only splits that were given."""
        return {
            name: fingerprint(self.tasks(name))
            for name, source in self._sources.items()
            if source is not None
        }

    def train_dataloader(self) -> DataLoader[tuple[Task, ...]]:
        """Give one epoch of iterations; a Trainer that calls ``set_epoch`` on samplers continues where the last epoch ended."""
        return DataLoader(
            _Iterations(self),
            batch_size=None,
            sampler=_EpochSampler(self.iterations_per_epoch),
            collate_fn=_identity,
        )

    def val_dataloader(self) -> DataLoader[list[Task]]:
        """Give the validation tasks in order, in lists."""
        return self._evaluation_dataloader("validation")

    def test_dataloader(self) -> DataLoader[list[Task]]:
        """Give the test tasks in order, in lists."""
        return self._evaluation_dataloader("test")

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leave tasks where they are: they hold no tensors, and Lightning's own walk refuses frozen dataclasses."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Describe what decides the order of tasks; iterations need no cursor."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make sure that a resumed run sees the tasks the checkpoint was made with.

        Raises:
            DataError: Something differs and ``allow_changed_data`` is off.
        """
        now = self.state_dict()
        changed = [
            f"{name}: {state_dict.get(name)} then, {now[name]} now"
            for name in _STATE
            if state_dict.get(name, {} if name == "weights" else None) != now[name]
        ]
        if not changed:
            return
        message = f"the data differs from the checkpoint's ({'; '.join(changed)})"
        if not self.allow_changed_data:
            raise DataError(
                f"{message}; restore the files and settings, or set allow_changed_data=True to go on with the new ones"
            )
        _LOGGER.warning("%s, as allow_changed_data permits", message)

    def _training_schedule(self) -> TaskSchedule:
        self.setup()
        if self._schedule is None:
            raise DataError("there are no training tasks to draw from; give TaskDataModule a train file")
        return self._schedule

    def _evaluation_dataloader(self, split: Split) -> DataLoader[list[Task]]:
        return DataLoader(
            self.tasks(split),  # type: ignore[arg-type]
            batch_size=self.tasks_per_iteration,
            shuffle=False,
            collate_fn=_identity,
        )


class _Iterations(Dataset[tuple[Task, ...]]):
    """Iteration number → its tasks."""

    def __init__(self, module: TaskDataModule) -> None:
        self._module = module

    def __getitem__(self, iteration: int) -> tuple[Task, ...]:
        return self._module.tasks_for(iteration)


class _EpochSampler(Sampler[int]):
    """The iteration numbers of one epoch."""

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._iterations

    def __iter__(self) -> Iterator[int]:
        # A generator reads the epoch at the first draw: a resuming Trainer makes the iterator before it tells the epoch.
        first = self._epoch * self._iterations
        yield from range(first, first + self._iterations)


def _identity(batch: Any) -> Any:
    return batch


def read_source(
    source: Source, name: Split, columns: Mapping[str, str] = MappingProxyType({})
) -> tuple[Task, ...]:
    """Return the tasks of a split, in whichever of its forms it is given.

    Raises:
        DataError: It is in no such form, holds nothing, or a file or a row is unusable.
    """
    if source is None:
        return ()
    if isinstance(source, (str, os.PathLike)):
        return read_tasks(source, columns=columns)
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise DataError(
            f"{name} must be a file, a list of files, tasks or rows, got a {type(source).__name__}; "
            "of several splits name one, such as dataset['train']"
        )
    items: list[Any] = list(source)
    if not items:
        raise DataError(
            f"{name} must hold at least one task, got none; leave {name} out if there is nothing to play"
        )
    kinds = {type(item) for item in items}
    if all(issubclass(kind, (str, os.PathLike)) for kind in kinds):
        return read_tasks(items, columns=columns)
    if all(issubclass(kind, Task) for kind in kinds):
        return tuple(items)
    if all(issubclass(kind, Mapping) for kind in kinds):
        rows = (SourceRow(f"{name}, row {number}", dict(row)) for number, row in enumerate(items, start=1))
        return tasks_from_rows(rows, columns=columns)
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(
        f"{name} must hold tasks, rows with named columns, or files, got {found}; use one of these"
    )
