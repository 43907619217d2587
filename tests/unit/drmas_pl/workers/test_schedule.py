"""Which worker groups learn when."""

from __future__ import annotations

from typing import Any

import pytest

from drmas_pl.workers.schedule import GroupSchedule, count_learning

NAMES = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("schedule", "learning"),
    [
        (GroupSchedule(), ["abc"] * 6),
        (GroupSchedule("alternate", every=2), ["a", "a", "b", "b", "c", "c", "a"]),
        (GroupSchedule("round_robin"), ["a", "b", "c", "a"]),
    ],
    ids=repr,
)
def test_groups_take_turns(schedule: GroupSchedule, learning: list[str]) -> None:
    assert ["".join(schedule(NAMES, iteration)) for iteration in range(len(learning))] == learning
    assert count_learning(schedule, NAMES, "b", len(learning)) == sum("b" in names for names in learning)


def test_turns_are_counted_from_the_end_of_a_warmup() -> None:
    schedule = GroupSchedule("alternate", every=2)
    # a b b c c a
    assert [count_learning(schedule, NAMES, name, 6, warmup=1) for name in NAMES] == [2, 2, 2]
    # b b c
    assert [count_learning(schedule, NAMES, name, 3, warmup=2) for name in NAMES] == [0, 2, 1]


def test_without_trainable_groups_nobody_learns() -> None:
    assert GroupSchedule("round_robin")([], 3) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "random"}, r"order must be one of \['joint', 'alternate', 'round_robin'\], got 'random'"),
        (
            {"order": "alternate", "every": 0},
            "every must be at least 1, and 1 unless order=alternate, got every=0",
        ),
        (
            {"order": "round_robin", "every": 2},
            "every must be at least 1, and 1 unless order=alternate, got every=2 with order=round_robin",
        ),
    ],
)
def test_wrong_settings_say_what_is_right(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupSchedule(**settings)
