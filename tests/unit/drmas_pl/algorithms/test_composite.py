"""Estimators around other estimators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from drmas_pl.algorithms.baseline_estimators import RoleBaseline
from drmas_pl.algorithms.composite import Inherited, Standardized
from drmas_pl.algorithms.estimators import AdvantageEstimator, GroupNormalizer
from drmas_pl.algorithms.turn_batch import TurnBatch, build_turn_batch
from drmas_pl.types import Task
from tests.helpers.tables import play
from tests.helpers.toy import Speaker

AGENTS = {"V": Speaker("V"), "S": Speaker("S"), "A": Speaker("A", on_truncated="mask")}


class Given(AdvantageEstimator):
    """Numbers made up for a test."""

    def __init__(self, *values: float) -> None:
        self.values = torch.tensor(values)

    def __call__(self, table: TurnBatch) -> Tensor:
        return self.values


class ByToken(Given):
    needs_values = True


def test_sub_agents_inherit_from_the_latest_turn_of_their_caller() -> None:
    table = build_turn_batch(
        [play("VSVA", [0.0] * 4), play("SVA", [0.0] * 3, sample=1, finish_reason=["stop", "stop", "length"])],
        AGENTS,
    )
    inherited = Inherited(Given(1.0, 9.0, 2.0, 9.0, 3.0, 4.0, 0.0), parents={"S": "V", "A": "V"})(table)
    # the search without a caller keeps its own, the turn that is not trained gets nothing
    assert inherited.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 0.0]
    assert Inherited(Given(*range(7)), parents={"S": "V"})(table).tolist() == [
        0.0,
        0.0,
        2.0,
        3.0,
        4.0,
        5.0,
        0.0,
    ]


def test_data_sources_are_put_on_one_scale_by_their_tokens() -> None:
    tasks = [Task(f"{source}{n}", "?", data_source=source) for source in "ab" for n in range(2)]
    lengths = [(7, 8), (7, 8), (7,), (7, 8, 9)]
    played = [
        play("V", [0.0], task=task, response_ids=[ids], logprobs=[(-1.0,) * len(ids)])
        for task, ids in zip(tasks, lengths, strict=True)
    ]
    found = Standardized(Given(1.0, -1.0, 9.0, 3.0), eps=0.0)(build_turn_batch(played, AGENTS))
    # source b: mean (9 + 3·3)/4 = 4.5, variance (20.25 + 3·2.25)/4 = 6.75
    assert found.tolist() == pytest.approx([1.0, -1.0, 4.5 / 6.75**0.5, -1.5 / 6.75**0.5])
    assert (
        Standardized(Given(1.0, -1.0, 9.0, 3.0), eps=1.0)(build_turn_batch(played, AGENTS)).tolist()
        != found.tolist()
    )


def test_groups_without_signal_stay_at_zero_after_standardising() -> None:
    tasks = [Task(f"t{n}", "?", data_source="one") for n in range(2)]
    played = [
        play("V", [reward], sample=n % 3, task=tasks[n // 3])
        for n, reward in enumerate([1.0, 1.0, 0.0, 0.9, 0.9, 0.9])
    ]
    grpo = GroupNormalizer(unit="trajectory", mean_scope=("task",), std_scope=("task",))
    played[0] = play("V", [1.0], sample=0, task=tasks[0], response_ids=[(1, 2, 3)], logprobs=[(-1.0,) * 3])
    found = Standardized(grpo)(build_turn_batch(played, AGENTS))
    assert found[3:].tolist() == [0.0] * 3
    # ±.57735 and -1.154701; over 3 + 1 + 1 tokens and 3 x 2 or more of nothing: the mean is not 0, and nothing is shifted by it
    assert found[0] == found[1] > 0 > found[2]


@pytest.mark.parametrize(("values", "last"), [((1.0, -1.0, 0.0), True), ((0.0, 0.0, 0.0), False)])
def test_a_turn_in_the_middle_of_a_group_with_signal_is_shifted_like_the_others(
    values: tuple[float, ...], last: bool
) -> None:
    tasks = [Task(f"t{n}", "?", data_source="one") for n in range(2)]
    played = [play("V", [0.0], sample=n % 3, task=tasks[n // 3]) for n in range(6)]
    found = Standardized(Given(3.0, 1.0, 2.0, *values), eps=0.0)(build_turn_batch(played, AGENTS))
    assert (found[5] != 0) == last


def test_a_wrapper_keeps_the_state_of_what_it_wraps() -> None:
    inner = RoleBaseline()
    Standardized(inner)(build_turn_batch([play("V", [1.0])], AGENTS))
    fresh = Standardized(RoleBaseline())
    fresh.load_state_dict(Standardized(inner).state_dict())
    assert fresh.state_dict() == inner.state_dict() != {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Inherited(GroupNormalizer(), parents={}),
            "parents must name the caller of at least one agent, got none",
        ),
        (
            lambda: Standardized(ByToken()),
            "Standardized needs one advantage per turn, but ByToken gives one per token",
        ),
        (
            lambda: Inherited(Given(), parents={"X": "V"})(build_turn_batch([], AGENTS)),
            r"parents must name agents out of \['A', 'S', 'V'\], got \['X'\]",
        ),
    ],
)
def test_wrong_settings_say_what_is_right(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
