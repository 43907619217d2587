"""Fingerprints, overlap, tables and subsets of task sets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from drmas_pl.data.splits import (
    check_disjoint,
    check_unique_ids,
    fingerprint,
    normalise,
    source_table,
    stratified_subset,
)
from drmas_pl.errors import DataError
from drmas_pl.types import Task

TASK = Task("a", "1 + 1?", ("2", "two"), "sums", {"level": 1, "split": "train"})


@pytest.mark.parametrize(
    "change",
    [
        {"id": "b"},
        {"question": "1 + 1 ?"},
        {"reference": ("two", "2")},
        {"reference": ("2",)},
        {"data_source": "other"},
        {"metadata": {"level": 2, "split": "train"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_fingerprint_sees_everything_a_run_sees(change: dict[str, Any]) -> None:
    assert fingerprint([replace(TASK, **change)]) != fingerprint([TASK])


def test_the_fingerprint_sees_order_and_number_but_not_the_order_of_metadata() -> None:
    other = replace(TASK, id="b")
    assert fingerprint([TASK, other]) != fingerprint([other, TASK])
    assert fingerprint([TASK]) != fingerprint([TASK, TASK])
    assert fingerprint([replace(TASK, metadata={"split": "train", "level": 1})]) == fingerprint([TASK])


def test_the_fingerprint_is_the_same_on_every_machine() -> None:
    assert fingerprint([]) == "cae66941d9efbd404e4d88758ea67670"
    assert fingerprint([TASK]) == "49ba725a634bb56a050151ce9c3536c4"


def test_the_fingerprint_refuses_what_has_no_stable_form() -> None:
    fingerprint([replace(TASK, metadata={"day": date(2025, 1, 1), "raw": b"\x00"})])
    with pytest.raises(
        DataError,
        match=r"task 'a': metadata must be JSON-like, got a object, which has no stable written form; use texts",
    ):
        fingerprint([replace(TASK, metadata={"bad": object()})])


def test_disjoint_splits_pass() -> None:
    check_disjoint([TASK], [Task("b", "1 - 1?")], test=[Task("c", "1 + 2?")])
    check_disjoint([TASK, TASK])


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (
            ([TASK], [TASK], []),
            r"train and validation share 1 question \(1 exactly, 0 normalised\), .* task 'a' and task 'a': '1 \+ 1\?'; remove",
        ),
        (([TASK], [], [Task("c", "1 +  1")]), r"train and test share 1 question \(0 exactly, 1 normalised\)"),
        (([], [TASK], [TASK]), "validation and test share 1 question"),
        (
            ([TASK, Task("b", "Who?")], [], [TASK, Task("d", "who?")]),
            r"share 2 questions \(1 exactly, 1 normalised\)",
        ),
    ],
)
def test_overlap_is_counted(splits: tuple[list[Task], list[Task], list[Task]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_disjoint(splits[0], splits[1], test=splits[2])


def test_all_overlaps_are_reported_at_once() -> None:
    with pytest.raises(
        DataError, match=r"train and validation share .*; train and test share .*; validation and test share"
    ):
        check_disjoint([TASK], [TASK], test=[TASK])


def test_normalising_keeps_what_changes_the_meaning() -> None:
    assert normalise("Wer war’s?") == normalise(" wer  WAR’S")
    assert normalise("ﬁnd x²") == "find x2"
    assert normalise("3 - 5 =") != normalise("3 + 5 =")
    assert normalise("Is 1.5 > 2?") != normalise("Is 15 > 2?")


def test_the_table_counts_every_source_in_every_split() -> None:
    tasks = [replace(TASK, data_source=source) for source in ("b", "a", "b")]
    assert source_table({"train": tasks, "validation": tasks[:1]}).splitlines() == [
        "source  train  validation",
        "a           1           0",
        "b           2           1",
        "total       3           1",
    ]


def test_no_source_is_left_out_of_a_subset_that_has_room_for_it() -> None:
    sizes = {"hotpotqa": 7405, "nq": 3610, "bamboogle": 125, "tiny": 1}
    tasks = [
        replace(TASK, id=f"{source}-{number}", data_source=source)
        for source, size in sizes.items()
        for number in range(size)
    ]
    counts = Counter(task.data_source for task in stratified_subset(tasks, 30, seed=0))
    assert counts == {"hotpotqa": 18, "nq": 10, "bamboogle": 1, "tiny": 1}
    few = Counter(task.data_source for task in stratified_subset(tasks, 3, seed=0))
    assert few == {"hotpotqa": 2, "nq": 1}


def test_a_subset_keeps_shares_order_and_ids() -> None:
    tasks = [
        replace(TASK, id=str(number), data_source="big" if number % 4 else "small") for number in range(100)
    ]
    subset = stratified_subset(tasks, 10, seed=0)
    assert Counter(task.data_source for task in subset) in (Counter(big=8, small=2), Counter(big=7, small=3))
    assert [int(task.id) for task in subset] == sorted(int(task.id) for task in subset)
    assert subset == stratified_subset(tasks, 10, seed=0)
    assert subset != stratified_subset(tasks, 10, seed=1)
    assert stratified_subset(tasks, 1000, seed=0) == tuple(tasks)
    assert all(len(stratified_subset(tasks, size, seed=0)) == size for size in range(1, 101))
    with pytest.raises(ValueError, match="a subset must hold at least 1 task, got 0"):
        stratified_subset(tasks, 0, seed=0)


def test_two_tasks_with_one_id_are_refused() -> None:
    check_unique_ids([Task("a", "1 + 1?"), Task("b", "1 + 1?")], "train")
    with pytest.raises(
        DataError,
        match=r"validation: tasks must have ids of their own, got 'a' 3 times \(1 of 2 ids repeated\), for 'x' and 'y'; they would share",
    ):
        check_unique_ids([Task("a", "x"), Task("b", "x"), Task("a", "y"), Task("a", "x")], "validation")
