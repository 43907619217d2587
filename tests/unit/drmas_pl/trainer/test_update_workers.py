"""Workers with devices of their own learn at the same time, others in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from drmas_pl.algorithms.token_batch import TrainingRow
from drmas_pl.cluster.remote import RemotePolicyWorker
from drmas_pl.trainer.iteration import update_workers
from drmas_pl.workers.learner import UpdateReport


class Group(RemotePolicyWorker):
    """Writes down what it is asked and when."""

    def __init__(self, name: str, diary: list[str], *, alone: bool) -> None:
        self.name, self.diary, self.owns_devices = name, diary, alone

    @contextmanager
    def training(self) -> Iterator[None]:
        self.diary.append(f"{self.name} wakes")
        yield
        self.diary.append(f"{self.name} sleeps")

    def begin_update(
        self, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int
    ) -> Callable[[], UpdateReport]:
        self.diary.append(f"{self.name} begins with {sorted(rows)} and {seed}")
        return lambda: self.diary.append(f"{self.name} ends") or UpdateReport(steps=seed)  # type: ignore[func-returns-value]

    def update(self, rows: Mapping[str, Sequence[TrainingRow]], *, seed: int) -> UpdateReport:
        return self.begin_update(rows, seed=seed)()


def test_groups_on_the_same_devices_take_turns() -> None:
    diary: list[str] = []
    groups = [Group(name, diary, alone=False) for name in "ab"]
    reports = update_workers(groups, {"a": {"writer": []}, "b": {"judge": []}}, {"a": 1, "b": 2})
    assert {name: report.steps for name, report in reports.items()} == {"a": 1, "b": 2}
    assert diary == [
        *("a wakes", "a begins with ['writer'] and 1", "a ends", "a sleeps"),
        *("b wakes", "b begins with ['judge'] and 2", "b ends", "b sleeps"),
    ]


def test_groups_on_their_own_devices_do_not_wait_for_each_other() -> None:
    diary: list[str] = []
    groups = [Group("a", diary, alone=True), Group("b", diary, alone=False), Group("c", diary, alone=True)]
    reports = update_workers(groups, {name: {} for name in "abc"}, {"a": 1, "b": 2, "c": 3})
    assert list(reports) == ["a", "b", "c"] and [report.steps for report in reports.values()] == [1, 2, 3]
    assert [line for line in diary if "begins" in line or "ends" in line] == [
        *("a begins with [] and 1", "c begins with [] and 3", "b begins with [] and 2", "b ends"),
        *("a ends", "c ends"),
    ]
    assert diary[-2:] == ["c sleeps", "a sleeps"]
