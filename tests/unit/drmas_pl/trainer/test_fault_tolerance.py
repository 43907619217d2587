"""Stages are repeated from the state that all groups have kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from drmas_pl.errors import GroupLost, TrainingStopped
from drmas_pl.trainer.fault_tolerance import StageRetry


class Group:
    """Stands for a group on a cluster: its weights are a number, and files hold them."""

    def __init__(self, name: str, repeats: int = 2) -> None:
        self.name = self.label = name
        self.max_retries = repeats
        self.changed = True
        self.weights = 0
        self.dies = False
        self.restored: list[Path | None] = []

    def train(self) -> None:
        self.changed, self.weights = True, self.weights + 1

    def snapshot(self, folder: Path) -> None:
        if self.dies:
            self.dies = False
            raise GroupLost(f"{self.name} died")
        folder.mkdir(parents=True)
        (folder / "weights").write_text(str(self.weights))

    def restore(self, folder: Path | None) -> None:
        self.restored.append(folder)
        self.weights = 0 if folder is None else int((folder / "weights").read_text())


def kept(folder: Path) -> dict[str, str]:
    return {path.name.partition("-")[0]: (path / "weights").read_text() for path in folder.iterdir()}


def test_a_lost_stage_is_repeated_from_the_kept_state(tmp_path: Path) -> None:
    groups = [Group("a"), Group("b")]
    recovery, calls = StageRetry(groups, tmp_path / "kept"), []
    recovery.snapshot()

    def update(by: int, *, last: int) -> int:
        for group in groups:
            for _ in range(by):
                group.train()
            if not calls:
                calls.append("lost")
                raise GroupLost("b died")
        recovery.snapshot()
        return last

    assert recovery.run(update, 3, last=7) == 7
    assert [group.weights for group in groups] == [3, 3] and kept(tmp_path / "kept") == {"a": "3", "b": "3"}
    recovery.clear()
    assert not (tmp_path / "kept").exists()


def test_a_loss_while_keeping_leaves_the_former_state_valid(tmp_path: Path) -> None:
    first, second = Group("a"), Group("b")
    recovery = StageRetry([first, second], tmp_path)
    recovery.snapshot()

    def update() -> None:
        first.train()
        second.train()
        recovery.snapshot()

    second.dies = True
    recovery.run(update)
    assert (first.weights, second.weights) == (1, 1)
    assert [folder.name for folder in first.restored if folder is not None] == ["a-0"]


def test_groups_that_did_not_change_are_not_written_again(tmp_path: Path) -> None:
    trained, frozen = Group("trained"), Group("frozen")
    recovery = StageRetry([trained, frozen], tmp_path)
    recovery.snapshot()
    trained.train()
    recovery.snapshot()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frozen-0", "trained-1"]


def test_it_gives_up_with_the_cause(tmp_path: Path) -> None:
    group, calls = Group("a", repeats=2), []

    def stage() -> None:
        calls.append(1)
        raise GroupLost("generation of worker group 'a' did not end within 5 s")

    with pytest.raises(
        TrainingStopped,
        match="gave up: generation of worker group 'a' did not end within 5 s",
    ):
        StageRetry([group], tmp_path).run(stage)
    assert len(calls) == 3 and group.restored == [None, None]


def test_without_repeats_nothing_is_kept(tmp_path: Path) -> None:
    recovery = StageRetry([Group("a", repeats=0)], tmp_path / "kept")
    recovery.snapshot()
    assert not (tmp_path / "kept").exists()


def test_groups_in_this_process_are_left_alone(tmp_path: Path) -> None:
    recovery = StageRetry([], tmp_path / "kept")
    recovery.snapshot()
    assert recovery.run(sum, [1, 2]) == 3 and not (tmp_path / "kept").exists()
